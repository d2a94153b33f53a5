"""Perplexity: the exponential of the mean negative log-likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer4090.errors import ConfigError, Problem
from trainer4090.metrics import METRICS, Mean, Metric, needs_classes
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch

_LARGEST_EXPONENT = math.log(2.0) * 1023
"""Beyond it a double is infinite."""


@dataclass(frozen=True)
class Config:
    """`metrics=perplexity` has no fields."""


@METRICS.register("perplexity", Config)
def perplexity(config: Config, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Exponential of the mean negative log-likelihood of the model's softmax, without smoothing or class weights."""
    problems = needs_classes("perplexity", data)
    if loss.outputs not in (None, "class_logits") and not problems:
        given = "perplexity of outputs that this loss trains as something else than logits of a softmax"
        problems.append(Problem("metrics", given, "use loss=cross_entropy"))
    if problems:
        raise ConfigError(*problems)
    # torch's own default, which no class has, where the loss ignores nothing.
    ignored = -100 if loss.ignore_index is None else loss.ignore_index

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import torch
        from torch.nn import functional

        logits, classes = outputs.flatten(0, -2), targets.flatten()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        total = functional.cross_entropy(logits, classes, ignore_index=ignored, reduction="sum")
        return total, (classes != ignored).sum()

    return (Metric("perplexity", False, lambda: Mean(sums, exponential)),)


def exponential(value: float) -> float:
    """e to the power of `value`, infinite where a double ends."""
    return math.exp(value) if value < _LARGEST_EXPONENT else math.inf
