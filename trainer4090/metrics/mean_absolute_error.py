"""Mean absolute error of numbers, or of class targets as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer4090.errors import ConfigError, Problem
from trainer4090.metrics import METRICS, Mean, Metric, is_valid
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """`metrics=mean_absolute_error` has no fields."""


@METRICS.register("mean_absolute_error", Config)
def mean_absolute_error(config: Config, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Absolute difference of outputs and numbers, a mean over the outputs of a target; classes as one-hot vectors.

    What one target is, is what `loss=mse` says.
    """
    if loss.outputs not in (None, "numbers"):
        given = "mean_absolute_error of outputs that this loss trains as logits, whose size means nothing"
        raise ConfigError(Problem("metrics", given, "use loss=mse"))

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | int]:
        import torch
        from torch.nn import functional

        values = outputs if outputs.dtype == torch.float64 else outputs.float()
        if targets.is_floating_point():
            errors = (values - targets.reshape(values.shape)).abs().reshape(len(values), -1).mean(1)
            return errors.sum(), len(values)
        valid = is_valid(targets, loss.ignore_index)
        wanted = functional.one_hot(targets.where(valid, 0), values.shape[-1])
        return ((values - wanted).abs().mean(-1) * valid).sum(), valid.sum()

    return (Metric("mean_absolute_error", False, lambda: Mean(sums)),)
