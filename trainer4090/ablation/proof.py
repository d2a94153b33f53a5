"""What a row's own process has shown of its options, in words, and what it ought to have shown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer4090.plan import Plan
from trainer4090.records import Stage


def in_words(active: Mapping[str, Any]) -> str:
    """The facts of `result.json`'s `active`, of one update where they are counts."""
    return ", ".join(_phrases(active))


def _phrases(active: Mapping[str, Any]) -> Iterator[str]:
    products = active.get("products", {})
    total = sum(products.values())
    for dtype, count in products.items():
        yield f"{count} of {total} products in {dtype}"
    if "recomputed" in active:
        yield f"{active['recomputed']} operators recomputed"
    if "held_mib" in active:
        yield f"{active['held_mib']:,.4g} MiB held for backward"
    if "compiled_calls" in active:
        yield f"{active['compiled_calls']} calls of compiled code"
    if "compiled_graphs" in active:
        yield f"{active['compiled_graphs']} graphs compiled"
    if "graph_replays" in active:
        yield f"{active['graph_replays']} graph replays"
    if "fused_optimizer_calls" in active:
        yield f"{active['fused_optimizer_calls']} fused optimizer kernels"
    if "float32_products" in active:
        yield f"float32 products {active['float32_products']}"
    if "float16_sums" in active:
        yield f"float16 sums {active['float16_sums']}"


def doubts(plan: Plan, active: Mapping[str, Any]) -> list[str]:
    """What the plan has and the process did not show; empty when everything was seen."""
    found = []
    products, arithmetic = active.get("products", {}), plan.precision.arithmetic
    replayed = "graph_replays" in active  # a replay launches kernels without telling which
    seen = arithmetic in products or (replayed and not products)
    if arithmetic in ("float16", "bfloat16") and not seen:
        found.append(f"no product in {arithmetic}")
    expected = {"float32": "exact", "tf32": "rounded to TF32"}.get(arithmetic)
    if expected is not None and active.get("float32_products", expected) != expected:
        found.append(f"float32 products are {active['float32_products']}")
    if plan.kernels.compile_backend is not None and "compiled_graphs" not in active:
        found.append("nothing was compiled")
    if plan.fused_optimizer and "fused_optimizer_calls" not in active and not replayed:
        found.append("no fused optimizer kernel")
    checkpointed = any(step.stage == Stage.CHECKPOINT for step in plan.transforms)
    if checkpointed and "recomputed" not in active and "compiled_graphs" not in active and not replayed:
        found.append("nothing was recomputed")
    return found
