"""Steps down at milestones."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from trainer4090.schedules import SCHEDULES, Horizon, Schedule
from trainer4090.schema import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class Config:
    """At each milestone the rate is multiplied by `gamma`."""

    milestones: tuple[PositiveInt, ...] = (30, 60, 80)
    gamma: PositiveFloat = 0.1
    unit: Literal["epoch", "update"] = "epoch"


@SCHEDULES.register("multistep", Config)
def multistep(config: Config) -> Schedule:
    """Multiply the rate by gamma at each milestone, counted in epochs or updates."""
    milestones = sorted(config.milestones)

    def factor(update: int, horizon: Horizon) -> float:
        position = update // horizon.per_epoch if config.unit == "epoch" else update
        return config.gamma ** bisect_right(milestones, position)

    return Schedule(factor, needs_total=False)
