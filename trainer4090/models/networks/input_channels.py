"""Networks made for colour images, with another number of channels."""

from __future__ import annotations

import torch
from torch import nn


def set_input_channels(module: nn.Module, num_channels: int) -> None:
    """Changes the first convolution of `module` to `num_channels` inputs; its name and all else stay as they are.

    Its weights are the initial ones of the channels that there were, in turn, scaled so that the variance of its
    output for independent channels stays what the network's initialisation chose.
    """
    first = next(child for child in module.modules() if isinstance(child, nn.Conv2d))
    if first.in_channels == num_channels:
        return
    source = torch.arange(num_channels) % first.in_channels
    scale = (first.in_channels / num_channels) ** 0.5
    first.weight = nn.Parameter(first.weight.detach()[:, source] * scale)
    first.in_channels = num_channels
