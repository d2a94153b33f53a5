"""Multilayer perceptron over flattened items."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


class HiddenLayer(nn.Module):
    """Linear, ReLU, dropout."""

    def __init__(self, num_inputs: int, num_outputs: int, dropout: float) -> None:
        """torch's default initialisation."""
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Activations (batch, num_outputs) of `hidden` (batch, num_inputs)."""
        return self.dropout(self.linear(hidden).relu())


class MLP(nn.Module):
    """Hidden layers and a linear head."""

    def __init__(self, widths: Sequence[int], num_classes: int, dropout: float) -> None:
        """`widths`: values of an item, then the width of every hidden layer."""
        super().__init__()
        self.blocks = nn.Sequential(*(HiddenLayer(before, after, dropout) for before, after in pairwise(widths)))
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (batch, num_classes) of `images` (batch, ...), floating point."""
        return self.head(self.blocks(images.flatten(1)))
