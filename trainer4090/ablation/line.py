"""A line of the table: the measurements of one row, beside those of the first row and of the fp32 reference. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer4090.ablation import parity, proof
from trainer4090.ablation.parity import Losses, Parity
from trainer4090.ablation.record import Measurement
from trainer4090.ablation.rows import Row
from trainer4090.plan import Plan

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Line:
    """What is known of a row; None where this machine cannot tell, or nothing was measured."""

    label: str
    status: str
    reason: str
    repeats: int
    """Processes that ended well."""
    batch: int
    micro_batch: int
    items_per_s: float | None
    """Median over the processes."""
    items_per_s_low: float | None
    items_per_s_high: float | None
    speed_up: float | None
    """Against the first row."""
    peak_allocated_gib: float | None
    """Largest over the processes, warm-up included."""
    peak_reserved_gib: float | None
    gpu_utilization: float | None
    """Percent of time with a kernel running."""
    mfu: float | None
    """Share of the card's dense peak for the arithmetic in use."""
    parity: Parity | None
    compile_s: float | None
    """Time that the warm-up took beyond as many steady updates, the largest over the processes."""
    active: str
    """What the row's own process has shown of its options."""
    doubts: tuple[str, ...]
    """What it ought to have shown and did not."""
    commit: str

    @property
    def spread(self) -> str:
        """Lowest and highest speed."""
        if self.items_per_s_low is None or self.items_per_s_high is None or self.repeats < 2:
            return ""
        return f"{number(self.items_per_s_low)} to {number(self.items_per_s_high)}"


def number(value: float) -> str:
    """A rate with four digits or more."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Beside:
    """Measurements that a row is compared with."""

    first: Sequence[Measurement]
    """Of the first row."""
    reference: Sequence[Measurement]
    """Of the same training with the plain option of every axis."""
    twin: Sequence[Measurement]
    """Of the reference, started from noisy parameters."""


def line_of(row: Row, plan: Plan | None, own: Sequence[Measurement], beside: Beside) -> Line:
    """The line of `row`, from its measurements. `plan`: None when it cannot be run here."""
    good = [each for each in own if each.status == "ok"]
    bad = next((each for each in own if each.status != "ok"), None)
    rates = sorted(_known(good, "items_per_s"))
    median, base = _median(rates), _median(_known(_good(beside.first), "items_per_s"))
    active = good[0].result.get("active", {}) if good else {}
    train = row.spec.train
    return Line(
        label=row.label,
        status=bad.status if bad else "ok" if good else NOT_MEASURED,
        reason=bad.reason if bad else "",
        repeats=len(good),
        batch=train.batch_size,
        micro_batch=train.micro_batch or train.batch_size,
        items_per_s=median,
        items_per_s_low=rates[0] if rates else None,
        items_per_s_high=rates[-1] if rates else None,
        speed_up=median / base if median is not None and base else None,
        peak_allocated_gib=_largest(each.result.get("peak_memory_gib", {}).get("allocated") for each in good),
        peak_reserved_gib=_largest(each.result.get("peak_memory_gib", {}).get("reserved") for each in good),
        gpu_utilization=_median([each.speed["utilization"] for each in good if "utilization" in each.speed]),
        mfu=_median([each.speed["mfu"] for each in good if "mfu" in each.speed]),
        parity=_parity(plan, good, beside),
        compile_s=_largest(map(_compile_s, good)),
        active=proof.in_words(active),
        doubts=tuple(proof.doubts(plan, active)) if good and plan is not None else (),
        commit=", ".join(dict.fromkeys(each.commit for each in own if each.commit)),
    )


def _parity(plan: Plan | None, good: Sequence[Measurement], beside: Beside) -> Parity | None:
    """The worst comparison of all processes of the row with the reference's first."""
    if not good or plan is None:
        return None
    for tried in (beside.reference, beside.twin):
        if not _good(tried):
            return Parity("unknown", why=f"the fp32 reference is {tried[0].status if tried else NOT_MEASURED}")
    reference, twin = (_losses(_good(tried)[0]) for tried in (beside.reference, beside.twin))
    arithmetic, dropout = plan.precision.arithmetic, plan.evidence.model.dropout
    compared = [parity.compare(_losses(each), reference, twin, arithmetic, dropout) for each in good]
    return max(compared, key=lambda each: (each.verdict != "same", (each.difference or 0) / (each.allowed or 1)))


def _losses(measurement: Measurement) -> Losses:
    result = measurement.result
    return Losses(result.get("first_losses", []), result.get("first_applied", []))


def _compile_s(measurement: Measurement) -> float | None:
    times, steady = measurement.result.get("first_times_ms"), measurement.result.get("step_time_ms")
    if not times or steady is None:
        return None
    return max(sum(times) - len(times) * steady, 0.0) / 1000


def _good(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [each for each in measurements if each.status == "ok"]


def _known(measurements: Sequence[Measurement], key: str) -> list[float]:
    return [each.result[key] for each in measurements if key in each.result]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _largest(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
