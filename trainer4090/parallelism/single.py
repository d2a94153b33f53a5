"""One card."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.parallelism import PARALLELISM, Parallelism
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """No fields."""


@PARALLELISM.register("single", Config)
def single(config: Config, facts: Facts) -> Parallelism:
    """Train on one card (or the CPU) in one process."""
    return Parallelism(executor="local", max_cards=1)
