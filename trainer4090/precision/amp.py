"""Mixed precision in float16 with dynamic loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainer4090.card import Card
from trainer4090.precision import PRECISION, LossScale, Precision
from trainer4090.records import Notice, Settings
from trainer4090.schema import PositiveFloat, PositiveInt
from trainer4090.traits import Facts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Loss scale: where it starts, how it grows, where an overflow means divergence; and how products are summed."""

    initial_scale: PositiveFloat = 65536.0
    growth_interval: PositiveInt = 2000
    floor: PositiveFloat = 2.0**-14
    accumulate: Literal["fp32", "fp16"] = "fp32"


def float16_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to float16: matmuls and convolutions in fp16, norms and softmax in fp32."""
    import torch

    return torch.autocast(device.type, torch.float16)


@PRECISION.register("amp", Config)
def amp(config: Config, facts: Facts) -> Precision:
    """Keep fp32 master weights; run matmuls and convolutions in fp16 with dynamic loss scaling."""
    scale = LossScale(config.initial_scale, config.growth_interval, config.floor)
    why = _no_gain(facts.card) if config.accumulate == "fp16" else None
    accumulates = config.accumulate == "fp16" and why is None
    return Precision(
        arithmetic="float16",
        accumulation="float16" if accumulates else "float32",
        loss_scale=scale,
        context=float16_autocast,
        settings=Settings(flags=(("backends.cuda.matmul.allow_fp16_accumulation", accumulates),)),
        notices=() if why is None else (Notice("precision.accumulate", "fp16", "fp32", why),),
    )


def _no_gain(card: Card) -> str | None:
    """Why fp16 accumulation would only cost digits on `card`; None where it gains, or where nobody has said."""
    if card.device == "cpu":
        return "it is a mode of NVIDIA tensor cores, which a CPU lacks"
    slow, fast = card.fp16_tflops, card.fp16_accumulate_tflops
    if slow is None or fast is None or fast > slow:
        return None
    return f"{card.device_name} is no faster with it ({fast:g} TFLOP/s either way), and it costs digits"
