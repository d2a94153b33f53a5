"""The whole update as one CUDA graph: the host launches one thing, however many kernels it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.kernels import KERNELS, Kernels
from trainer4090.records import Notice
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """No fields."""


@KERNELS.register("graph", Config)
def graph(config: Config, facts: Facts) -> Kernels:
    """Capture the whole update as one CUDA graph and replay it; kernels=[fused,graph] compiles it too."""
    notices: tuple[Notice, ...] = ()
    if facts.card.device == "cpu":
        why = "CUDA graphs are a feature of NVIDIA's driver; the update is the same, over the same fixed tensors"
        notices = (Notice("kernels", "graph", "the update launched anew each time", why),)
    return Kernels(graph=True, fused_optimizer=True, notices=notices)
