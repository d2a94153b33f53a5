"""Optimizer states in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.memory import MEMORY, LowBit, Memory
from trainer4090.schema import PositiveInt
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """Which parameters it concerns."""

    min_elements: PositiveInt = 4096


@MEMORY.register("lowbit", Config)
def lowbit(config: Config, facts: Facts) -> Memory:
    """Keep the optimizer's states in 8 bits, a largest value for every 256 (memory for rounding)."""
    return Memory(low_bit=LowBit(config.min_elements))
