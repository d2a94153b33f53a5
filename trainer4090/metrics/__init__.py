"""Metrics by name: numbers of an evaluation beside the loss and the metrics that the loss brings itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from trainer4090.errors import Problem
from trainer4090.registry import Registry
from trainer4090.traits import DataTraits

if TYPE_CHECKING:
    import torch


class Accumulator(Protocol):
    """What one evaluation has seen so far of a metric."""

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take in a batch on its device, without waiting for it."""
        ...

    def result(self) -> float:
        """The value over everything that was taken in; NaN when it is not defined. Called once, at the end."""
        ...


@dataclass(frozen=True)
class Metric:
    """A number of an evaluation."""

    name: str
    """Its tag is `eval/<name>`."""
    higher_is_better: bool | None
    """None when neither is better, so that no best evaluation can be chosen by it."""
    start: Callable[[], Accumulator]
    """An empty accumulator, one for each evaluation."""


METRICS: Registry[tuple[Metric, ...]] = Registry("metrics", __name__)
"""Builders take `(config, data_traits, loss_traits)` and raise a ConfigError where the metric cannot apply. A plan
calls them, so they import torch inside `start` only."""


Sums = Callable[["torch.Tensor", "torch.Tensor"], tuple["torch.Tensor", "torch.Tensor | int"]]
"""(outputs, targets) -> sum over the valid targets, 0-dim, and the number of these."""


@final
class Mean:
    """A sum over targets divided by the number of valid ones, both over the whole evaluation: never a mean of means."""

    def __init__(
        self,
        sums: Sums,
        finish: Callable[[float], float] = lambda mean: mean,
    ) -> None:
        """`finish` maps the mean to the result."""
        self._sums = sums
        self._finish = finish
        self._total: Any = 0.0
        self._count: Any = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Add the sums of a batch, in fp64."""
        total, count = self._sums(outputs, targets)
        self._total = self._total + total.double()
        self._count = self._count + count

    def sums(self) -> tuple[float, float]:
        """The sum and the number of targets so far."""
        return float(self._total), float(self._count)

    def of_sums(self, total: float, count: float) -> float:
        """The finished mean of sums, those of several processes added up; NaN without a valid target."""
        return self._finish(total / count) if count else math.nan

    def result(self) -> float:
        """The finished mean, NaN without a valid target."""
        return self.of_sums(*self.sums())


def is_valid(targets: torch.Tensor, ignore_index: int | None) -> torch.Tensor:
    """Which class targets count, bool of their shape."""
    import torch

    return torch.ones_like(targets, dtype=torch.bool) if ignore_index is None else targets != ignore_index


def needs_classes(name: str, data: DataTraits) -> list[Problem]:
    """Problems of a metric that compares scores of classes with the number of the right one."""
    if data.multi_label:
        given = f"{name} over samples with several labels"
        return [Problem("metrics", given, "it needs one class a target: use metrics=average_precision")]
    if data.num_classes < 2:
        given = f"{name} over targets that are numbers"
        return [Problem("metrics", given, "it needs classes: use metrics=mean_absolute_error")]
    return []
