"""Cosine decay with linear warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer4090.schedules import SCHEDULES, Horizon, Schedule
from trainer4090.schema import Fraction, Probability


@dataclass(frozen=True)
class Config:
    """Warm-up as a fraction of the run, so that a shorter run of the same recipe stays valid."""

    warmup_fraction: Probability = 0.05
    final_factor: Fraction = 0.0


@SCHEDULES.register("cosine", Config)
def cosine(config: Config) -> Schedule:
    """Warm up linearly, then decay along half a cosine to the final factor, reached at the last update."""

    def factor(update: int, horizon: Horizon) -> float:
        warmup = min(round(config.warmup_fraction * horizon.total), horizon.total - 1)
        if update < warmup:
            return (update + 1) / warmup
        peak = max(warmup - 1, 0)
        progress = (update - peak) / max(horizon.total - 1 - peak, 1)
        return config.final_factor + (1 - config.final_factor) * (1 + math.cos(math.pi * progress)) / 2

    return Schedule(factor, needs_total=True)
