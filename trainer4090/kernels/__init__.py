"""Axis `kernels`: how the same mathematics is turned into device kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer4090.records import ForwardContext, Notice, Settings, Transform
from trainer4090.registry import Registry

Measure = Literal["measure"]
"""Word of a field for the fastest of the values that its option's `candidates` names; see `timings`."""


@dataclass(frozen=True)
class Kernels:
    """Facts and effects of a kernels option."""

    compile_backend: str | None = None
    """Backend of torch.compile, None when nothing is compiled."""
    compile_function: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Compiles what runs beside the model: the loss, whose fp32 logits need not exist then."""
    graph: bool = False
    """The whole update is captured once and replayed."""
    fused_optimizer: bool = False
    channels_last: bool = False
    pads_weights: bool = False
    """Parameters have zeros at their ends, which must stay zero."""
    head_chunk_tokens: int | None = None
    """Tokens whose logits exist at once in training, where the module hands on what its head takes; None: all."""
    cuda_graphs_inside: bool = False
    """The compiler captures forward and backward as CUDA graphs of its own."""
    scripted: bool = False
    """Forward runs as TorchScript."""
    attention: str | None = None
    """Backend of scaled_dot_product_attention that was asked for, None when nobody asked."""
    contexts: tuple[ForwardContext, ...] = ()
    """Around forward, inside the precision's."""
    transforms: tuple[Transform, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notices: tuple[Notice, ...] = ()


KERNELS: Registry[Kernels] = Registry("kernels", __name__)
