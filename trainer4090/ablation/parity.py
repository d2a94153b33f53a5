"""Whether a row trains what fp32 trains: the losses of its first updates beside those of the plain run. Pure.

How far rounding may carry two equal trainings apart is measured, not assumed: a twin of the plain run starts from
parameters with relative noise of `NOISE`, and shows how fast this training amplifies it. Some do by ten in every
update, and after a few of those no comparison says anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

NOISE = 2.0**-12
ROUNDING = {"float32": 2.0**-22, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Arithmetic of the matrix products -> relative error of one, with the sums inside."""
LARGEST = {"float32": 1e-3, "tf32": 2e-2, "float16": 2e-2, "bfloat16": 5e-2}
"""Arithmetic -> relative difference of a loss that is never called rounding."""
COARSEST, LOOSEST = 2.0**-4, 0.2
"""Both for arithmetic that the tables do not know, such as 8 bits."""
MARGIN = 32.0
"""Of what the twin predicts. Measured on a CPU: at most 17, over ten updates of five tiny models, fp16 and bf16."""
AMPLIFIED = 2.0**-8
"""Difference of the twin from which on losses are not compared: it has stopped growing with the noise."""

Verdict = Literal["same", "DIFFERS", "unknown"]


@dataclass(frozen=True)
class Losses:
    """Losses of the first updates of one process."""

    values: Sequence[float]
    applied: Sequence[int] = ()
    """Updates applied after each, empty without loss scaling."""


@dataclass(frozen=True)
class Parity:
    """The comparison of two lists of losses."""

    verdict: Verdict
    difference: float | None = None
    """Largest relative difference of the compared losses."""
    allowed: float | None = None
    """What rounding explains, at the update where the difference is largest beside it."""
    num_compared: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.difference is None or self.allowed is None:
            return f"{self.verdict}: {self.why}"
        if self.difference == 0:
            return "same: equal"
        beside = f"; {self.why}" if self.why else ""
        return f"{self.verdict}: {self.difference:.0e}, rounding explains {self.allowed:.0e}{beside}"


def compare(row: Losses, reference: Losses, twin: Losses, arithmetic: str, dropout: bool) -> Parity:
    """The verdict on the losses of `row`, of the same data and seed as `reference` and its `twin`.

    An update that fp16 skips leaves the parameters behind those of the reference, so that the loss of that update is
    the last one that can be compared. `dropout`: compiled code may draw other masks, which is no fault.
    """
    allowed = allowances(reference, twin, arithmetic)
    num_losses = min(len(row.values), len(reference.values))
    skipped = next((index for index, count in enumerate(row.applied) if count != index + 1), num_losses)
    num_compared = min(num_losses, len(allowed), skipped + 1)
    if num_compared == 0:
        return Parity("unknown", why="no losses to compare")
    pairs = zip(row.values[:num_compared], reference.values, strict=False)
    differences = [relative(one, other) for one, other in pairs]
    worst = max(range(num_compared), key=lambda index: differences[index] / allowed[index])
    why = f"{num_compared} of {num_losses} updates compared" if num_compared < num_losses else ""
    verdict: Verdict = "same" if differences[worst] <= allowed[worst] else "DIFFERS"
    if verdict == "DIFFERS" and dropout:
        verdict, why = "unknown", "dropout may draw other masks: compare without it"
    return Parity(verdict, max(differences), allowed[worst], num_compared, why)


def allowances(reference: Losses, twin: Losses, arithmetic: str) -> list[float]:
    """The relative difference that rounding explains, for each update that can be compared; at least for the first."""
    rounding, largest = ROUNDING.get(arithmetic, COARSEST), LARGEST.get(arithmetic, LOOSEST)
    allowed, amplified = [], 0.0
    for one, other in zip(twin.values, reference.values, strict=False):
        amplified = max(amplified, relative(one, other))
        if amplified > AMPLIFIED and allowed:
            break
        allowed.append(min(4 * rounding + MARGIN * rounding / NOISE * amplified, largest))
    return allowed


def relative(one: float, other: float) -> float:
    """Relative difference of two losses; infinite when either is no number."""
    difference = abs(one - other) / max(abs(other), 1e-12)
    return difference if math.isfinite(difference) else math.inf
