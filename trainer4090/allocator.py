"""How CUDA's memory is handed out: settings of torch's allocator, read once, when the process first uses the GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer4090.card import Card
from trainer4090.records import Settings

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch 2.11 to 2.14 looks for them; it reads the first that is set."""
EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True)
class Surroundings:
    """What decides about the allocator outside the configuration."""

    platform: str
    """As `sys.platform`."""
    variable: tuple[str, str] | None
    """Name and value of the user's own settings."""


@dataclass(frozen=True)
class Allocator:
    """Settings of a run, and the line of the plan about them."""

    settings: Settings = field(default_factory=Settings)
    label: str = ""
    """"" where there is nothing to say."""


def surroundings(environment: Mapping[str, str] = os.environ) -> Surroundings:
    """Those of this process."""
    own = next(((name, environment[name]) for name in VARIABLES if name in environment), None)
    return Surroundings(sys.platform, own)


def allocator(card: Card, around: Surroundings) -> Allocator:
    """Expandable segments on a GPU, unless the user's own variable says otherwise.

    A segment that grows in place of many fixed ones leaves no gaps that are too small for the next tensor, as batches
    of other sizes and an evaluation between updates would. It needs virtual memory of the driver, so not Windows. Such
    memory cannot be shared with another process by the old `cudaIpcGetMemHandle`, which nothing here does.
    """
    if card.device != "cuda":
        return Allocator()
    if around.variable is not None:
        name, value = around.variable
        return Allocator(Settings(), f"as {name}={value} says")
    if around.platform != "linux":
        return Allocator()
    return Allocator(Settings(environment=((VARIABLES[-1], EXPANDABLE),)), f"{EXPANDABLE}, against gaps")
