"""Weights of classes or labels, on the device of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def weights_beside(values: tuple[float, ...] | None) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """logits -> the weights on their device in their dtype, moved there once, so that no later call synchronises."""
    import torch

    placed: dict[tuple[type, torch.device, torch.dtype], torch.Tensor] = {}

    def beside(logits: torch.Tensor) -> torch.Tensor | None:
        if values is None:
            return None
        # The type belongs to the key because a tensor made under FakeTensorMode is fake and must not be met later.
        place = (type(logits), logits.device, logits.dtype)
        if place not in placed:
            placed[place] = torch.tensor(values, dtype=logits.dtype, device=logits.device)
        return placed[place]

    return beside
