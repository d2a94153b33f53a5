"""What an evaluation measures, and what its values decide: settled with the plan, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer4090.criterion import Criterion
from trainer4090.errors import ConfigError, Problem
from trainer4090.metrics import METRICS, Metric
from trainer4090.spec import Choice, RunSpec
from trainer4090.traits import DataTraits, LossTraits


@dataclass(frozen=True)
class Evaluation:
    """The values of every evaluation of a run."""

    metrics: tuple[Metric, ...]
    """Those that were chosen; the loss brings its own."""
    directions: Mapping[str, bool | None]
    """Name of every value, `loss` first -> whether higher is better, None when neither is."""
    criterion: Criterion

    @property
    def tags(self) -> list[str]:
        """Tags of all values."""
        return [f"eval/{name}" for name in self.directions]

    def describe(self) -> str:
        """A line for the plan."""
        patience = self.criterion.patience
        end = "" if patience is None else f", ends after {patience} evaluations without a better one"
        return f"{', '.join(self.directions)}; the best by {self.criterion.name}{end}"


def make(spec: RunSpec, data: DataTraits, loss: LossTraits, problems: list[Problem]) -> Evaluation:
    """What `spec` evaluates; problems are appended, of metrics that cannot apply for example."""
    metrics = _metrics(spec.metrics, data, loss, problems)
    directions = {"loss": False, **loss.metrics, **{metric.name: metric.higher_is_better for metric in metrics}}
    train, name = spec.train, spec.train.best_by.removeprefix("eval/")
    criterion = Criterion(name, bool(directions.get(name)), train.patience, train.least_improvement)
    return Evaluation(metrics, directions, criterion)


def _metrics(
    choices: tuple[Choice, ...], data: DataTraits, loss: LossTraits, problems: list[Problem]
) -> tuple[Metric, ...]:
    names = [choice.name for choice in choices]
    if len(names) > 1 and "auto" in names:
        problems.append(Problem("metrics", f"[{', '.join(names)}] holds auto, which adds nothing", "drop auto"))
    found: dict[str, Metric] = {}
    for choice in choices:
        try:
            built = METRICS.get(choice.name).build(choice.config, data, loss)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        for metric in built:
            if metric.name in (*found, "loss", *loss.metrics):
                given = f"{choice.name} measures eval/{metric.name}, which is measured already"
                problems.append(Problem("metrics", given, "measure it once"))
            found[metric.name] = metric
    return tuple(found.values())
