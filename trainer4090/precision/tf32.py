"""fp32 storage, matrix products with 10 mantissa bits."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.precision import PRECISION, Precision
from trainer4090.records import Notice, Settings
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """No fields."""


@PRECISION.register("tf32", Config)
def tf32(config: Config, facts: Facts) -> Precision:
    """Keep fp32 tensors; let tensor cores read them as TF32 in matmuls and convolutions."""
    if facts.card.device == "cpu":
        why = "TF32 is a mode of NVIDIA tensor cores, which a CPU lacks"
        return Precision(arithmetic="float32", notices=(Notice("precision", "tf32", "float32", why),))
    flags = (("backends.cuda.matmul.allow_tf32", True), ("backends.cudnn.allow_tf32", True))
    return Precision(arithmetic="tf32", settings=Settings(flags=flags))
