"""Which evaluation is the best one, and when waiting for a better one ends. Knows values, not what they measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """How long nothing has become better; a checkpoint file keeps it."""

    reference: float | None = None
    """The value that has to be beaten, None before there is one."""
    num_stale: int = 0
    """Evaluations since it was set."""


@dataclass(frozen=True)
class Criterion:
    """One value of an evaluation decides which one is the best, and whether training goes on."""

    name: str
    """Of the value; its tag is `eval/<name>`."""
    higher_is_better: bool
    patience: int | None
    """Evaluations in a row without a sufficiently better value after which training ends, None for no such end."""
    least_improvement: float
    """What a value has to be better by, and more than that, to count against the patience."""

    def improves(self, evaluation: Mapping[str, float], best: Mapping[str, float] | None) -> bool:
        """Whether an evaluation is better than the best one so far; one without the value never is."""
        if self.name not in evaluation:
            return False
        return best is None or self._gain(evaluation[self.name], best[self.name]) > 0

    def after(self, waiting: Waiting, evaluation: Mapping[str, float]) -> Waiting:
        """How long nothing has become better after one more evaluation.

        Small gains add up: the reference stays until a value beats it by more than `least_improvement`.
        """
        value = evaluation.get(self.name)
        first = value is not None and waiting.reference is None
        if first or (value is not None and self._gain(value, waiting.reference) > self.least_improvement):
            return Waiting(value, 0)
        return Waiting(waiting.reference, waiting.num_stale + 1)

    def ends(self, waiting: Waiting) -> bool:
        """Whether training has waited long enough."""
        return self.patience is not None and waiting.num_stale >= self.patience

    def _gain(self, value: float, reference: float | None) -> float:
        assert reference is not None
        return value - reference if self.higher_is_better else reference - value
