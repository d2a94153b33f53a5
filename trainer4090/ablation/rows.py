"""From a spec to the rows of its ablation. Pure: nothing is started, no file is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from trainer4090.ablation import parity
from trainer4090.errors import ConfigError, Problem
from trainer4090.parse import REGISTRIES
from trainer4090.spec import LIST_AXES, AblateSection, Choice, RunSpec, to_tree

BASELINE = {"precision": "fp32", "memory": "none", "kernels": "eager", "parallelism": "single"}
"""The plain option of every axis, in the order in which a ladder climbs."""
ARTICLES = {"precision": "amp", "memory": "checkpoint", "kernels": "fused"}
"""What a ladder tries on an axis where the spec has the plain option."""
AS_GIVEN = "as given"
LARGEST_SCALE = 1024.0
"""From torch's 65,536 the first three updates of a ResNet-18 overflow."""

Technique = tuple[str, Choice]
"""An axis and an option of it."""
Composed = Callable[[Sequence[str]], RunSpec]
"""Overrides of a row -> its spec."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    label: str
    spec: RunSpec
    """As its processes get it, but for the folder."""

    @cached_property
    def digest(self) -> str:
        """Short hash of everything that decides the figures: equal rows need not be measured twice."""
        tree = to_tree(self.spec)
        del tree["ablate"]["timeout_s"]
        return hashlib.sha256(json.dumps(tree).encode()).hexdigest()[:8]


def rows_of(spec: RunSpec, composed: Composed) -> list[Row]:
    """The rows that `ablate.rows` or `ablate.axes` ask for; speed-ups count from the first.

    Raises:
        ConfigError: there are none, or two of them are equal.
    """
    wish = spec.ablate
    if wish.rows != "auto":
        named = [(text, composed(text.split())) for text in wish.rows]
    elif wish.axes in _WORDS:
        named = _WORDS[cast(str, wish.axes)](spec)
    else:
        axes = (wish.axes,) if isinstance(wish.axes, str) else wish.axes
        named = _compared(spec, axes)
    rows = [Row(label, to_measure(each)) for label, each in named]
    problems = [] if rows else [Problem("ablate.rows", "[] asks for no rows", "list some, or use auto")]
    seen: dict[str, str] = {}
    for row in rows:
        if row.digest in seen:
            given = f"{row.label!r} is measured as {seen[row.digest]!r} already"
            problems.append(Problem("ablate.rows", given, "name it once"))
        seen[row.digest] = row.label
    if problems:
        raise ConfigError(*problems)
    return rows


@dataclass(frozen=True)
class Yardsticks:
    """Rows that say how the losses of another row ought to be."""

    reference: Row
    """The same training with the plain option of every axis."""
    twin: Row
    """The reference, from noisy parameters: how fast this training amplifies rounding."""


def yardsticks_of(row: Row, rows: Sequence[Row]) -> Yardsticks:
    """The rows whose losses `row` is compared with; the reference is one of `rows` where it can be."""
    spec = with_techniques(row.spec, ())
    own = Row(f"losses of fp32, batch {spec.train.batch_size}", spec)
    short = replace(spec.ablate, seconds=0.0)
    reference = own if any(own.digest == each.digest for each in rows) else _with_section(own, short)
    twin = _with_section(own, replace(short, noise=parity.NOISE))
    return Yardsticks(reference, replace(twin, label=f"{own.label}, noisy"))


def _with_section(row: Row, section: AblateSection) -> Row:
    return Row(row.label, replace(row.spec, ablate=section))


def to_measure(spec: RunSpec) -> RunSpec:
    """The spec of a process that measures: its length is that of warm-up and measured updates, in whole log points."""
    wish = spec.ablate
    log_every = min(spec.train.log_every, wish.steps)
    steps = -(-(wish.warm_up + wish.steps) // log_every) * log_every
    train = replace(
        spec.train,
        steps=steps,
        epochs=None,
        log_every=log_every,
        log_samples=0,
        eval_every=None,
        checkpoint_every=None,
        patience=None,
        least_improvement=0.0,
    )
    return replace(
        spec,
        root=replace(spec.root, task="ablate", resume=None),
        run=replace(spec.run, dir=None),
        train=train,
        ablate=replace(wish, rows="auto", axes="ladder", repeats=1),
        precision=_without_overflow(spec.precision),
    )


def _without_overflow(precision: Choice) -> Choice:
    """The precision with a loss scale that fits from the start: an update that is skipped has no losses to compare."""
    scale = getattr(precision.config, "initial_scale", 0.0)
    if scale <= LARGEST_SCALE:
        return precision
    return Choice(precision.name, replace(precision.config, initial_scale=LARGEST_SCALE))


def techniques_of(spec: RunSpec) -> list[Technique]:
    """The options that the spec has beyond the plain ones; where it has none, that of the articles."""
    found: list[Technique] = []
    for axis, plain in BASELINE.items():
        chosen = [choice for choice in _choices(spec, axis) if choice.name != plain]
        if not chosen and axis in ARTICLES:
            chosen = [_default(axis, ARTICLES[axis])]
        found += [(axis, choice) for choice in chosen]
    return found


def with_techniques(spec: RunSpec, techniques: Sequence[Technique]) -> RunSpec:
    """The spec with these options, and the plain one on every other axis."""
    changes: dict[str, Any] = {}
    for axis, plain in BASELINE.items():
        chosen = tuple(choice for group, choice in techniques if group == axis) or (_default(axis, plain),)
        changes[axis] = chosen if axis in LIST_AXES else chosen[0]
    return replace(spec, **changes)


def _ladder(spec: RunSpec) -> list[tuple[str, RunSpec]]:
    """Plain, then one technique more in every row, up to all; and the spec as it stands, where that is another."""
    techniques = techniques_of(spec)
    rungs = [techniques[: count + 1] for count in range(len(techniques))]
    labels = [f"+ {rung[-1][1].name}{' (all)' if rung == techniques else ''}" for rung in rungs]
    rows = [(label, with_techniques(spec, rung)) for label, rung in zip(labels, rungs, strict=True)]
    return _around(spec, rows)


def _alone(spec: RunSpec) -> list[tuple[str, RunSpec]]:
    """Plain, then each technique by itself, then all together."""
    techniques = techniques_of(spec)
    rows = [(f"{choice.name} alone", with_techniques(spec, [(axis, choice)])) for axis, choice in techniques]
    return _around(spec, [*rows, ("all", with_techniques(spec, techniques))] if len(techniques) > 1 else rows)


def _leave_one_out(spec: RunSpec) -> list[tuple[str, RunSpec]]:
    """Plain, all together, then all but one."""
    techniques = techniques_of(spec)
    rows = [("all", with_techniques(spec, techniques))]
    for left in techniques if len(techniques) > 1 else ():
        rest = [technique for technique in techniques if technique != left]
        rows.append((f"all but {left[1].name}", with_techniques(spec, rest)))
    return _around(spec, rows)


_WORDS: dict[str, Callable[[RunSpec], list[tuple[str, RunSpec]]]] = {
    "ladder": _ladder,
    "alone": _alone,
    "leave_one_out": _leave_one_out,
}


def _around(spec: RunSpec, rows: list[tuple[str, RunSpec]]) -> list[tuple[str, RunSpec]]:
    named = [("baseline", with_techniques(spec, ())), *rows]
    return named if spec in [each for _, each in named] else [*named, (AS_GIVEN, spec)]


def _compared(spec: RunSpec, axes: Sequence[str]) -> list[tuple[str, RunSpec]]:
    """The axes plain, then each option of each of them by itself; the other axes stay as they are."""
    plain = {axis: BASELINE[axis] for axis in axes}
    base = replace(spec, **{axis: _as_field(axis, _default(axis, name)) for axis, name in plain.items()})
    rows = [(" ".join(f"{axis}={name}" for axis, name in plain.items()), base)]
    for axis in plain:
        given = {choice.name: choice for choice in _choices(spec, axis)}
        for name in REGISTRIES[axis].names():
            if name != plain[axis]:
                choice = given.get(name) or _default(axis, name)
                rows.append((f"{axis}={name}", replace(base, **{axis: _as_field(axis, choice)})))
    return rows


def _choices(spec: RunSpec, axis: str) -> tuple[Choice, ...]:
    value = getattr(spec, axis)
    return value if axis in LIST_AXES else (value,)


def _as_field(axis: str, choice: Choice) -> Any:
    return (choice,) if axis in LIST_AXES else choice


def _default(axis: str, name: str) -> Choice:
    return Choice(name, REGISTRIES[axis].get(name).config())
