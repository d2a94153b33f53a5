"""Average precision of samples with several labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from trainer4090.errors import ConfigError, Problem
from trainer4090.metrics import METRICS, Metric
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """`metrics=average_precision` has no fields."""


@METRICS.register("average_precision", Config)
def average_precision(config: Config, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Average precision of each label over all held-out samples, then the mean over labels that have a positive."""
    if not data.multi_label:
        given = "average_precision over samples of one class each"
        remedy = "it needs several labels a sample: use metrics=top5, or metrics=top1"
        raise ConfigError(Problem("metrics", given, remedy))
    return (Metric("average_precision", True, AveragePrecision),)


@final
class AveragePrecision:
    """Keeps every score on its device: a precision at some recall needs the order of all of them."""

    def __init__(self) -> None:
        self._scores: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take in scores (batch, labels), logits or probabilities, and targets of the same shape, 0 or 1."""
        scores = outputs.detach().reshape(len(outputs), -1)
        self._scores.append(scores.clone())  # a compiled model may write its next outputs into the same memory
        self._targets.append(targets.reshape(scores.shape) > 0.5)

    def result(self) -> float:
        """The mean over labels with a positive; NaN when there is none."""
        import torch

        if not self._scores:
            return math.nan
        return float(mean_over_labels(torch.cat(self._scores), torch.cat(self._targets)))


def mean_over_labels(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean average precision, 0-dim fp64, of scores (samples, labels) and bool targets of their shape.

    For one label it is the sum over thresholds of precision x gain in recall. Every positive gains 1 / positives, so
    it is the mean over positives of the precision at their score; equal scores are one threshold, at the last of them.

    Source: scikit-learn, `average_precision_score`, without the interpolation that Pascal VOC makes.
    """
    import torch

    places = torch.arange(len(scores), device=scores.device).unsqueeze(1).expand(scores.shape)
    ordered, order = scores.sort(dim=0, descending=True)
    hits = targets.gather(0, order)
    last = torch.ones_like(hits)
    last[:-1] = ordered[:-1] != ordered[1:]
    threshold = places.where(last, len(scores)).flip(0).cummin(0).values.flip(0)
    precision = hits.cumsum(0).gather(0, threshold).double() / (threshold + 1)
    positives = hits.sum(0)
    averages = (precision * hits).sum(0) / positives
    # A score that is no number has no place in the order.
    averages = averages.where(scores.isnan().any(0).logical_not(), math.nan)
    return averages[positives > 0].mean()
