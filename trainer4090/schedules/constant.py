"""No schedule."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.schedules import SCHEDULES, Horizon, Schedule


@dataclass(frozen=True)
class Config:
    """No fields."""


@SCHEDULES.register("constant", Config)
def constant(config: Config) -> Schedule:
    """Keep the peak learning rate throughout."""

    def factor(update: int, horizon: Horizon) -> float:
        return 1.0

    return Schedule(factor, needs_total=False)
