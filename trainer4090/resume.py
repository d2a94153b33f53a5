"""What a resumed run may change. Everything else would train something else under the same curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer4090 import parse, plan
from trainer4090.errors import ConfigError, Problem
from trainer4090.schedules import SCHEDULES
from trainer4090.schema import shown
from trainer4090.spec import RunSpec, flatten, to_tree

KEPT_SECTIONS = ("model", "data", "loss", "schedule")
KEPT_KEYS = ("train.seed", "train.batch_size", "train.best_by", "optimizer.name")
FREE_KEYS = ("data.num_workers",)


def check(folder: Path, spec: RunSpec) -> None:
    """Raise unless `spec` goes on with the training that `folder` holds.

    Raises:
        ConfigError: naming every key that would change it.
    """
    before = parse.load(folder / "spec.yaml")
    problems = [*_changed(before, spec), *_stretched(before, spec)]
    if problems:
        raise ConfigError(*problems)


def overrides_of(folder: Path) -> list[str]:
    """The overrides that the run was started with; its own words come before those of the resuming command line."""
    path = folder / "overrides.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def joined(earlier: Sequence[str], words: Sequence[str]) -> list[str]:
    """Overrides of the run as a whole: each key once, with its newest value; `resume` concerns one start only."""
    newest = {word.partition("=")[0]: word for word in (*earlier, *words)}
    return [word for key, word in newest.items() if key != "resume"]


def _changed(before: RunSpec, now: RunSpec) -> Iterator[Problem]:
    old, new = flatten(to_tree(before)), flatten(to_tree(now))
    for key in sorted({*old, *new}):
        kept = key in KEPT_KEYS or (key.split(".")[0] in KEPT_SECTIONS and key not in FREE_KEYS)
        if kept and old.get(key) != new.get(key):
            given = f"was {shown(old.get(key))}, now {shown(new.get(key))}"
            yield Problem(key, given, "a resumed run keeps it; drop the override, or start a new run without resume")


def _stretched(before: RunSpec, now: RunSpec) -> Iterator[Problem]:
    schedule = SCHEDULES.get(now.schedule.name).build(now.schedule.config)
    old, new = (plan.horizon_of(spec, plan.gather(spec).data).total for spec in (before, now))
    if schedule.needs_total and old != new:
        key = "train.steps" if now.train.steps is not None else "train.epochs"
        given = f"the {now.schedule.name} schedule would change from {old} to {new} updates"
        yield Problem(key, given, "keep the length, or use schedule=constant or multistep from the start")
