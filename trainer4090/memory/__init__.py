"""Axis `memory`: what is given up to hold less of the device's memory at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer4090.records import AroundForward, Notice, Settings, Transform
from trainer4090.registry import Registry


@dataclass(frozen=True)
class LowBit:
    """Optimizer states are kept in 8 bits."""

    min_elements: int
    """Of a parameter whose states are."""


@dataclass(frozen=True)
class Memory:
    """Facts and effects of a memory option."""

    needs_blocks: bool = False
    """The model must have blocks."""
    recomputes: bool = False
    """Forwards run again in backward, where what they draw at random has to be drawn again."""
    needs_compile: bool = False
    """The compiler does the work: kernels must compile."""
    redraws: str | None = None
    """What is computed again draws its random numbers anew, so the model must draw none."""
    step_in_backward: bool = False
    """A parameter is stepped, and its gradient freed, while the gradients of others are still to come."""
    low_bit: LowBit | None = None
    """None keeps optimizer states in the parameters' dtype."""
    capturable: bool = True
    """Everything it does may be captured in a CUDA graph of the whole update."""
    contexts: tuple[AroundForward, ...] = ()
    transforms: tuple[Transform, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notices: tuple[Notice, ...] = ()


MEMORY: Registry[Memory] = Registry("memory", __name__)
