"""Nothing given up."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.memory import MEMORY, Memory
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """No fields."""


@MEMORY.register("none", Config)
def none(config: Config, facts: Facts) -> Memory:
    """Hold every activation until backward has used it."""
    return Memory()
