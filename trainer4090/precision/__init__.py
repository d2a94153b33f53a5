"""Axis `precision`: which arithmetic matrix products run in, and how small gradients survive it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

from trainer4090.card import Accumulation, Dtype
from trainer4090.records import ForwardContext, Notice, Settings, Transform
from trainer4090.registry import Registry


@dataclass(frozen=True)
class LossScale:
    """Dynamic loss scaling: doubled after `growth_interval` good updates, halved after an overflow."""

    initial: float
    growth_interval: int
    floor: float
    """An overflow at this scale is no overflow but a model that has diverged; the run ends with exit 5."""


@dataclass(frozen=True)
class Precision:
    """Facts and effects of a precision option. Parameters, gradients and optimizer state stay in fp32."""

    arithmetic: Dtype = "float32"
    """What matrix products really run in on this card."""
    accumulation: Accumulation = "float32"
    """What the sums inside a matrix product are really kept in."""
    loss_scale: LossScale | None = None
    context: ForwardContext = lambda device: nullcontext()
    """Around forward only: backward follows the dtypes that forward chose."""
    transforms: tuple[Transform, ...] = ()
    settings: Settings = field(default_factory=Settings)
    """Mixed precisions leave TF32 as torch has it: autocast keeps convolutions out of fp32 anyway, and cuDNN chooses
    its fp16 kernels from fewer when TF32 is off."""
    notices: tuple[Notice, ...] = ()


PRECISION: Registry[Precision] = Registry("precision", __name__)
