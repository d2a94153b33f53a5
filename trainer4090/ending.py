"""How a run has ended, for its console and its `result.json`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer4090.plan import Plan

if TYPE_CHECKING:
    from trainer4090.loop import Progress


def nothing_left(plan: Plan, progress: Progress) -> str | None:
    """Why no update is left to make, None when one is."""
    if progress.step >= plan.horizon.total:
        return f"already at update {progress.step}"
    if stopped_early(plan, progress):
        return f"already at update {progress.step}, where train.patience ended it: a larger one goes on"
    return None


def stopped_early(plan: Plan, progress: Progress) -> bool:
    """Whether patience ended the run before its last update."""
    return progress.step < plan.horizon.total and plan.evaluation.criterion.ends(progress.waiting)


def best(plan: Plan, progress: Progress) -> dict[str, Any] | None:
    """The best evaluation and what made it that, None when no evaluation had the value."""
    criterion = plan.evaluation.criterion
    by = {"by": f"eval/{criterion.name}", "higher_is_better": criterion.higher_is_better}
    return None if progress.best is None else {**progress.best, **by}


def notices(plan: Plan, progress: Progress) -> Iterator[str]:
    """What the numbers on the console do not say: that patience ended the run, or that it has no best file."""
    criterion, found = plan.evaluation.criterion, progress.best
    tag = f"eval/{criterion.name}"
    if progress.evaluation and found is None:
        yield f"{tag} was no number in any evaluation: there is no best checkpoint file"
    if stopped_early(plan, progress):
        where = "" if found is None else f"; the best is {found['eval'][criterion.name]:.6g} at update {found['step']}"
        waited = f"{tag} has become no better for {criterion.patience} evaluations"
        yield f"stopped early at update {progress.step}: {waited}{where}"
