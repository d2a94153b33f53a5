"""One cycle: up, then far down."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer4090.schedules import SCHEDULES, Horizon, Schedule
from trainer4090.schema import PositiveFloat, Probability


@dataclass(frozen=True)
class Config:
    """As in `torch.optim.lr_scheduler.OneCycleLR`, without its cycling of momentum."""

    warmup_fraction: Probability = 0.3
    start_divisor: PositiveFloat = 25.0
    final_divisor: PositiveFloat = 10000.0


@SCHEDULES.register("onecycle", Config)
def onecycle(config: Config) -> Schedule:
    """Rise along a cosine to the peak rate, then fall along a cosine far below the start (Smith, 2018)."""
    start, final = 1 / config.start_divisor, 1 / (config.start_divisor * config.final_divisor)

    def factor(update: int, horizon: Horizon) -> float:
        peak = max(config.warmup_fraction * horizon.total - 1, 0.0)
        if update <= peak and peak > 0:
            return _between(start, 1.0, update / peak)
        fall = horizon.total - 1 - peak
        return _between(1.0, final, (update - peak) / fall if fall else 0.0)

    return Schedule(factor, needs_total=True)


def _between(first: float, last: float, progress: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2
