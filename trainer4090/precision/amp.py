"""Mixed precision in float16 with dynamic loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer4090.precision import PRECISION, LossScale, Precision
from trainer4090.schema import PositiveFloat, PositiveInt
from trainer4090.traits import Facts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Loss scale: where it starts, how it grows, and where an overflow means divergence."""

    initial_scale: PositiveFloat = 65536.0
    growth_interval: PositiveInt = 2000
    floor: PositiveFloat = 2.0**-14


def float16_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to float16: matmuls and convolutions in fp16, norms and softmax in fp32."""
    import torch

    return torch.autocast(device.type, torch.float16)


@PRECISION.register("amp", Config)
def amp(config: Config, facts: Facts) -> Precision:
    """Keep fp32 master weights; run matmuls and convolutions in fp16 with dynamic loss scaling."""
    scale = LossScale(config.initial_scale, config.growth_interval, config.floor)
    return Precision(arithmetic="float16", loss_scale=scale, context=float16_autocast)
