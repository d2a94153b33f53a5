"""Single precision throughout."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.precision import PRECISION, Precision
from trainer4090.records import Settings
from trainer4090.traits import Facts

FULL_FP32 = Settings(flags=(("backends.cuda.matmul.allow_tf32", False), ("backends.cudnn.allow_tf32", False)))
"""cuDNN allows TF32 by default, so full precision has to be asked for."""


@dataclass(frozen=True)
class Config:
    """No fields."""


@PRECISION.register("fp32", Config)
def fp32(config: Config, facts: Facts) -> Precision:
    """Run everything in fp32 with TF32 off: the reference that the other precisions are compared with."""
    return Precision(arithmetic="float32", settings=FULL_FP32)
