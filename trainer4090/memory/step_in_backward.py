"""The update is made parameter by parameter while backward runs, so gradients never exist all at once."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.memory import MEMORY, Memory
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """No fields."""


@MEMORY.register("step_in_backward", Config)
def step_in_backward(config: Config, facts: Facts) -> Memory:
    """Step each parameter as soon as backward has its gradient, and free the gradient at once."""
    return Memory(step_in_backward=True)
