"""Optimizers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trainer4090.registry import Registry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Optimizer:
    """How to build an optimizer; the executor owns the object."""

    learning_rate: float
    """Peak learning rate, multiplied by the schedule's factor."""
    weight_decay: float
    """For matrices only: norms, biases and other 1-D parameters get none."""
    build: Callable[[list[dict[str, Any]], bool], torch.optim.Optimizer]
    """(parameter groups, each with its `lr`; fused) -> optimizer.

    Fused ones skip an update on the device when their attribute `found_inf` holds 1.
    """
    elementwise: bool = False
    """Each number of a parameter moves by its own gradients alone, and stays zero as long as they are."""
    separable: bool = False
    """The step of a parameter depends on its own gradient, its own state and its group's options alone, and writes
    nothing but the parameter and that state: it may be made for one parameter at a time."""
    states: Mapping[str, Literal["signed", "unsigned"]] = field(default_factory=dict)
    """Name of a state tensor of the parameter's shape that 8 bits are enough for -> whether it may be negative."""


OPTIMIZERS: Registry[Optimizer] = Registry("optimizer", __name__)
"""Builders take `(config)`."""
