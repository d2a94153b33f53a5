"""Learning-rate schedules by name: pure functions of the applied update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer4090.registry import Registry


@dataclass(frozen=True)
class Horizon:
    """Length of a run in updates; the only unit that a schedule knows."""

    total: int
    per_epoch: int


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule."""

    factor: Callable[[int, Horizon], float]
    """(index of the applied update from 0, horizon) -> factor of the peak rate.

    `total - 1` gives the end value and nothing before it does; the only update of a run of one gets the peak rate.
    """
    needs_total: bool
    """The curve depends on the total, so a resumed run may not change it."""


SCHEDULES: Registry[Schedule] = Registry("schedule", __name__)
"""Builders take `(config)`."""
