"""Activations wait for backward in the memory of the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from trainer4090.memory import MEMORY, Memory
from trainer4090.records import AroundForward, Notice
from trainer4090.schema import NonNegativeFloat, PositiveFloat, Range
from trainer4090.traits import Facts

if TYPE_CHECKING:
    import torch
    from torch import nn

MIB = 2**20


@dataclass(frozen=True)
class Config:
    """Which activations go, and how much may be on its way."""

    min_mib: NonNegativeFloat = 1.0
    fraction: Annotated[float, Range(low=0, high=1, above_low=True)] = 1.0
    in_flight_mib: PositiveFloat = 256.0


@MEMORY.register("offload", Config)
def offload(config: Config, facts: Facts) -> Memory:
    """Copy saved activations to pinned host memory beside forward, and back ahead of backward (memory for the link)."""
    notices: tuple[Notice, ...] = ()
    if facts.card.device == "cpu":
        why = "on a CPU activations are in the host's memory already"
        notices = (Notice("memory.offload", "activations elsewhere", "copies that save nothing", why),)
    share = "" if config.fraction == 1 else f"{config.fraction:.0%} of "
    label = f"{share}saved tensors of at least {config.min_mib:g} MiB wait in host memory"
    around = AroundForward(label, partial(saving, config))
    return Memory(capturable=False, contexts=(around,), notices=notices)


def saving(config: Config, module: nn.Module, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """What makes the context of one forward of `module`; its pinned memory is used again by the next."""
    from trainer4090.memory.host.link import HostLink, StreamLink
    from trainer4090.memory.host.saved import Choice, SavedTensors, owned_by

    link = StreamLink(device) if device.type == "cuda" else HostLink()
    choice = Choice(int(config.min_mib * MIB), config.fraction, int(config.in_flight_mib * MIB))
    staying = owned_by(module)
    return lambda: SavedTensors(link, choice, device, staying).saving()
