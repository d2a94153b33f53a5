"""Whether a row trains what fp32 trains: the losses of its first updates beside those of the plain run. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TOLERANCE = {"float32": 1e-3, "tf32": 5e-3, "float16": 1e-2, "bfloat16": 3e-2}
"""Arithmetic of the matrix products -> largest relative difference of a loss that rounding explains.

Ten times what was measured over ten updates of the shipped recipes' models, tiny, on a CPU.
"""
LOOSEST = 0.1
"""For arithmetic that the table does not know."""

Verdict = Literal["same", "DIFFERS", "unknown"]


@dataclass(frozen=True)
class Parity:
    """The comparison of two lists of losses."""

    verdict: Verdict
    difference: float | None
    """Largest relative difference of the compared losses."""
    num_compared: int
    tolerance: float
    why: str = ""

    def __str__(self) -> str:
        if self.difference is None:
            return f"unknown: {self.why}"
        sign = "<=" if self.difference <= self.tolerance else ">"
        beside = f"; {self.why}" if self.why else ""
        return f"{self.verdict}: {self.difference:.1e} {sign} {self.tolerance:g}{beside}"


def compare(
    losses: Sequence[float], applied: Sequence[int], reference: Sequence[float], arithmetic: str, dropout: bool
) -> Parity:
    """The verdict on `losses`, of the same data and seed as `reference`.

    `applied`: updates applied after each, empty without loss scaling. An update that fp16 skips leaves the parameters
    behind those of the reference, so the loss of that update is the last one that can be compared.
    `dropout`: masks may be drawn in another order, which is another training by chance and not by fault.
    """
    tolerance = TOLERANCE.get(arithmetic, LOOSEST)
    num_equal = next((index for index, count in enumerate(applied) if count != index + 1), len(losses))
    num_compared = min(num_equal + 1, len(losses), len(reference))
    if num_compared == 0:
        return Parity("unknown", None, 0, tolerance, "no losses of the fp32 reference")
    pairs = list(zip(losses, reference, strict=False))[:num_compared]
    difference = max(_relative(one, other) for one, other in pairs)
    skipped = f"update {num_equal + 1} was skipped, {num_compared} compared" if num_compared < len(losses) else ""
    if difference <= tolerance:
        return Parity("same", difference, num_compared, tolerance, skipped)
    if dropout:
        return Parity("unknown", difference, num_compared, tolerance, "dropout may draw other masks; compare without")
    return Parity("DIFFERS", difference, num_compared, tolerance, skipped)


def _relative(one: float, other: float) -> float:
    difference = abs(one - other) / max(abs(other), 1e-12)
    return difference if math.isfinite(difference) else math.inf
