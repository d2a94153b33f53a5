"""Choices that a measurement of seconds makes: what was timed for a key, what is taken, and why. Imports no torch.

A field that says `measure` is settled before the plan is made: processes time each value that there is for it, and the
plan is handed the fastest, with this record as its reason. Where nothing can be timed, it is what `auto` takes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainer4090.errors import Problem, RunFolderError
from trainer4090.kernels import KERNELS
from trainer4090.records import Notice
from trainer4090.schema import read
from trainer4090.spec import RunSpec
from trainer4090.traits import Facts

MEASURE = "measure"
FILE = "timings.json"
"""In a run's folder: the timings that its spec was settled by."""
Value = bool | int | str


@dataclass(frozen=True)
class Candidate:
    """A value that was tried."""

    value: Value
    status: str
    """ok, or how the first of its processes ended that did not end well."""
    reason: str
    items_per_s: tuple[float, ...]
    """One of each process that ended well, in turn with those of the other candidates."""

    @property
    def rate(self) -> float | None:
        """Median over the processes; None unless all ended well."""
        return statistics.median(self.items_per_s) if self.status == "ok" and self.items_per_s else None

    @property
    def spread(self) -> float:
        """Difference between the fastest and the slowest process, relative to their median."""
        return (max(self.items_per_s) - min(self.items_per_s)) / statistics.median(self.items_per_s)


@dataclass(frozen=True)
class Timing:
    """A key that was settled by a measurement."""

    key: str
    value: Value
    candidates: tuple[Candidate, ...]
    """The first is what the key is without a measurement."""
    device_name: str
    date: str
    """YYYY-MM-DD of the measurement."""
    origin: Literal["now", "cache", "run"] = "now"
    """Measured in this start, found in the user's cache, or recorded by an earlier start of the run."""

    def __str__(self) -> str:
        taken = next(each for each in self.candidates if each.value == self.value)
        others = [each for each in self.candidates if each is not taken and each.rate is not None]
        failed = [f"{shown(each.value)} {_end(each)}" for each in self.candidates if each.rate is None]
        parts = [f"{shown(self.value)}, measured {_beside(taken, others, self.candidates[0])}", *failed]
        when = {"now": "", "cache": f", cached {self.date}", "run": f", as this run began on {self.date}"}
        return f"{self.key}: {'; '.join(parts)}{when[self.origin]}"


def shown(value: Value) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def decide(candidates: Sequence[Candidate]) -> Candidate | None:
    """The fastest candidate; the first stays unless another is faster by more than the spread of either.

    None when none of them ran.
    """
    ran = [each for each in candidates if each.rate is not None]
    first = candidates[0]
    if first.rate is not None:
        ran = [first, *(each for each in ran if _faster(each, first))]
    return max(ran, key=lambda each: each.rate or 0.0, default=None)


def wanted(spec: RunSpec) -> list[str]:
    """Keys that say `measure`."""
    return [
        f"kernels.{choice.name}.{field}"
        for choice in spec.kernels
        for field, value in asdict(choice.config).items()
        if value == MEASURE and KERNELS.get(choice.name).candidates is not None
    ]


def asked(spec: RunSpec, facts: Facts) -> dict[str, tuple[Value, ...]]:
    """Key that says `measure` -> the values there are for it here, what it is without a measurement first."""
    found: dict[str, tuple[Value, ...]] = {}
    for key in wanted(spec):
        _, name, field = key.split(".")
        entry = KERNELS.get(name)
        config = next(choice.config for choice in spec.kernels if choice.name == name)
        assert entry.candidates is not None
        found[key] = tuple(entry.candidates(config, facts)[field])
    return found


def with_values(spec: RunSpec, values: Mapping[str, Value]) -> RunSpec:
    """The spec with other values of some keys of `kernels`."""
    kernels = []
    for choice in spec.kernels:
        start = f"kernels.{choice.name}."
        own = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        kernels.append(replace(choice, config=replace(choice.config, **own)))
    return replace(spec, kernels=tuple(kernels))


def notices(spec: RunSpec, facts: Facts, told: Sequence[Notice]) -> tuple[Notice, ...]:
    """Keys that still say `measure`, and what they are instead; those that `told` speaks of are told already."""
    found = []
    for key, (first, *others) in asked(spec, facts).items():
        why = "nothing was timed on this card" if others else "there is nothing else to take here"
        found.append(Notice(key, MEASURE, shown(first), why))
    return tuple(each for each in found if each.key not in {notice.key for notice in told})


def as_text(timings: Sequence[Timing]) -> str:
    """Content of a file of timings."""
    return json.dumps([asdict(each) for each in timings], indent=2, ensure_ascii=False) + "\n"


def of_text(text: str) -> tuple[Timing, ...]:
    """The timings that `as_text` wrote down.

    Raises:
        ValueError: the text is something else.
    """
    tree: Any = json.loads(text)
    if not isinstance(tree, list):
        raise ValueError("holds no list")
    found: list[Timing] = []
    for each in tree:
        problems: list[Problem] = []
        timing = read(Timing, each, "timing", problems)
        if timing is None:
            raise ValueError(", ".join(f"{problem.key} {problem.given}" for problem in problems))
        found.append(timing)
    return tuple(found)


def of_folder(folder: Path) -> tuple[Timing, ...]:
    """The timings that a run's folder records; none without a file.

    Raises:
        RunFolderError: the file is not ours.
    """
    path = folder / FILE
    if not path.is_file():
        return ()
    try:
        return of_text(path.read_text(encoding="utf-8"))
    except ValueError as error:
        remedy = "remove it, and what it records is measured anew"
        raise RunFolderError(Problem(str(path), f"cannot be read ({error})", remedy)) from error


def _faster(candidate: Candidate, first: Candidate) -> bool:
    margin = 1 + max(candidate.spread, first.spread)
    return (candidate.rate or 0.0) > (first.rate or 0.0) * margin


def _beside(taken: Candidate, others: Sequence[Candidate], first: Candidate) -> str:
    """The rate of what was taken beside the one that it had to beat, or that did not beat it."""
    rate = f"{taken.rate or 0.0:,.4g}" if (taken.rate or 0.0) < 1000 else f"{taken.rate:,.0f}"
    if not others:
        return f"{rate} items/s"
    other = first if first in others else max(others, key=lambda each: each.rate or 0.0)
    against = f"{other.rate or 0.0:,.4g}" if (other.rate or 0.0) < 1000 else f"{other.rate:,.0f}"
    spread = max(taken.spread, other.spread)
    return f"{rate} against {against} items/s of {shown(other.value)} (spread {spread:.1%})"


def _end(candidate: Candidate) -> str:
    words = {"oom": "ran out of memory", "timeout": "took too long", "refused": "is refused"}
    return words.get(candidate.status, f"failed ({candidate.reason})")
