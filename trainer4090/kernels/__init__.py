"""Axis `kernels`: how the same mathematics is turned into device kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer4090.records import ForwardContext, Notice, Settings, Transform
from trainer4090.registry import Registry


@dataclass(frozen=True)
class Kernels:
    """Facts and effects of a kernels option."""

    compile_backend: str | None = None
    """Backend of torch.compile, None when nothing is compiled."""
    cuda_graphs_inside: bool = False
    """The compiler captures forward and backward as CUDA graphs of its own."""
    scripted: bool = False
    """Forward runs as TorchScript."""
    fused_optimizer: bool = False
    channels_last: bool = False
    attention: str | None = None
    """Backend of scaled_dot_product_attention that was asked for, None when nobody asked."""
    contexts: tuple[ForwardContext, ...] = ()
    """Around forward, inside the precision's."""
    transforms: tuple[Transform, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notices: tuple[Notice, ...] = ()


KERNELS: Registry[Kernels] = Registry("kernels", __name__)
