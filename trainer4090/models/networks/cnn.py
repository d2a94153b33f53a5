"""Small convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class ConvBlock(nn.Module):
    """3x3 convolution, BatchNorm, ReLU, 2x2 maximum, dropout."""

    def __init__(self, num_inputs: int, num_outputs: int, dropout: float) -> None:
        """torch's default initialisation; no bias, since BatchNorm has one."""
        super().__init__()
        self.convolution = nn.Conv2d(num_inputs, num_outputs, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(num_outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Feature maps (batch, num_outputs, ceil(height / 2), ceil(width / 2)) of `images` (batch, num_inputs, ...)."""
        activations = self.norm(self.convolution(images)).relu()
        # Rounding up keeps a 1x1 map, so that no image is too small.
        return self.dropout(functional.max_pool2d(activations, kernel_size=2, ceil_mode=True))


class CNN(nn.Module):
    """Convolution blocks, average over the image, linear head."""

    def __init__(self, widths: Sequence[int], num_classes: int, dropout: float) -> None:
        """`widths`: channels of an image, then of every block's output."""
        super().__init__()
        self.blocks = nn.Sequential(*(ConvBlock(before, after, dropout) for before, after in pairwise(widths)))
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (batch, num_classes) of `images` (batch, channels, height, width), floating point, any size."""
        return self.head(functional.adaptive_avg_pool2d(self.blocks(images), 1).flatten(1))
