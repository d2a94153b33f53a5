"""Mixed precision in bfloat16."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer4090.precision import PRECISION, Precision
from trainer4090.traits import Facts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """No fields."""


def bfloat16_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to bfloat16: matmuls and convolutions in bf16, norms and softmax in fp32."""
    import torch

    return torch.autocast(device.type, torch.bfloat16)


@PRECISION.register("bf16", Config)
def bf16(config: Config, facts: Facts) -> Precision:
    """Keep fp32 master weights; run matmuls and convolutions in bf16, whose range needs no loss scaling."""
    return Precision(arithmetic="bfloat16", context=bfloat16_autocast)
