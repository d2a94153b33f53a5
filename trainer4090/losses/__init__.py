"""Losses by name, as sums over targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer4090.records import Loss
from trainer4090.registry import ContractError, Registry

if TYPE_CHECKING:
    import torch

LOSSES: Registry[Loss] = Registry("loss", __name__)
"""Builders and traits take `(config, data_traits)`; traits return `LossTraits` without importing torch."""


def per_target(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Loss:
    """The loss whose `function(outputs, targets)` gives one number a target.

    Integer targets (batch, ...) are one target each; of float targets every sample is one. Outputs arrive in fp32 (or
    fp64) whatever the model's precision is.
    """
    import torch

    def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = function(outputs if outputs.dtype == torch.float64 else outputs.float(), targets)
        if losses.numel() != count(targets) or losses.ndim == 0:
            given = f"gives losses of shape {tuple(losses.shape)} for targets of shape {tuple(targets.shape)}"
            remedy = "one number a target: reduction='none', and .mean(-1) over what belongs to one target"
            raise ContractError(given, remedy)
        return losses.sum()

    def count(targets: torch.Tensor) -> int:
        return len(targets) if targets.is_floating_point() else targets.numel()

    return Loss(total, count)
