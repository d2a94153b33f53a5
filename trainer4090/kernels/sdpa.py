"""Which of torch's kernels compute attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer4090.attention import only
from trainer4090.kernels import KERNELS, Kernels, Measure
from trainer4090.records import Notice
from trainer4090.schema import Auto
from trainer4090.traits import Facts


@dataclass(frozen=True)
class Config:
    """The only backend that may be used."""

    backend: Auto | Measure | Literal["flash", "efficient", "cudnn", "math"] = "auto"


def candidates(config: Config, facts: Facts) -> dict[str, tuple[str, ...]]:
    """Backends to time: torch's choice first, then each by itself; rules refuse those that there are not."""
    if facts.model.attention is False:
        return {"backend": ("auto",)}
    on_gpu = ("efficient", "cudnn") if facts.card.device == "cuda" else ()
    return {"backend": ("auto", "flash", *on_gpu, "math")}


@KERNELS.register("sdpa", Config, candidates=candidates)
def sdpa(config: Config, facts: Facts) -> Kernels:
    """Compute scaled-dot-product attention with one backend and no other; `auto` leaves the choice to torch."""
    if facts.model.attention is False:
        why = "the model does not call torch's scaled_dot_product_attention"
        return Kernels(notices=(Notice("kernels.sdpa.backend", config.backend, "nothing to choose for", why),))
    if config.backend in ("auto", "measure"):
        return Kernels(attention="auto")
    return Kernels(attention=config.backend, contexts=(lambda device: only([config.backend]),))
