"""Axis `kernels`: how the same mathematics is turned into device kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer4090.records import Notice, Settings, Transform
from trainer4090.registry import Registry


@dataclass(frozen=True)
class Kernels:
    """Facts and effects of a kernels option."""

    compile_backend: str | None = None
    """Backend of torch.compile, None when nothing is compiled."""
    graph: bool = False
    """The whole update is captured once and replayed."""
    fused_optimizer: bool = False
    channels_last: bool = False
    transforms: tuple[Transform, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notices: tuple[Notice, ...] = ()


KERNELS: Registry[Kernels] = Registry("kernels", __name__)
