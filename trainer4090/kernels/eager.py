"""torch as it is."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.kernels import KERNELS, Kernels
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """No fields."""


@KERNELS.register("eager", Config)
def eager(config: Config, facts: Facts) -> Kernels:
    """Launch one kernel an operation, as plain torch does."""
    return Kernels()
