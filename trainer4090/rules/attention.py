"""Rules about the backend of attention."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan

Problems = Iterator[Problem]

ON_A_CPU = ("auto", "flash", "math")
IN_HALF_PRECISION = ("flash", "cudnn")
"""On a GPU; a CPU's flash attention takes fp32 too."""


def attention_backend_exists(plan: Plan) -> Problems:
    """The device and the precision have the backend that was asked for."""
    backend = plan.kernels.attention
    if backend is None:
        return
    key = "kernels.sdpa.backend"
    if plan.card.device == "cpu" and backend not in ON_A_CPU:
        yield Problem(key, f"{backend}, which a CPU does not have", "use kernels.sdpa.backend=flash, or math")
    if plan.card.device == "cuda" and backend in IN_HALF_PRECISION and plan.precision.arithmetic in ("float32", "tf32"):
        given = f"{backend} takes fp16 and bf16, but precision={plan.spec.precision.name} keeps fp32 tensors"
        yield Problem(key, given, "use precision=bf16, or kernels.sdpa.backend=efficient")


RULES = (attention_backend_exists,)
