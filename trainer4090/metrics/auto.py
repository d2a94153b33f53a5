"""Nothing added."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.metrics import METRICS, Metric
from trainer4090.traits import DataTraits, LossTraits


@dataclass(frozen=True)
class Config:
    """No fields."""


@METRICS.register("auto", Config)
def auto(config: Config, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Only what the loss brings: accuracy for cross_entropy, bce, and mse of classes."""
    return ()
