"""Rules about what a kernels option can do with the rest."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.rules.memory import names

Problems = Iterator[Problem]


def recomputing_is_capturable(plan: Plan) -> Problems:
    """What is recomputed inside a captured update draws nothing at random, unless the compiler does the drawing."""
    traits = plan.evidence.model
    in_eager = plan.kernels.compile_backend is None or traits.compiled_in_units
    if plan.kernels.graph and plan.memory.recomputes and traits.dropout and in_eager:
        given = f"{names(plan.spec.kernels)} with memory={names(plan.spec.memory)} and dropout"
        why = "the state of the random numbers cannot be set back while a graph is captured"
        compiled = "" if traits.compiled_in_units else "kernels=[fused,graph], "
        yield Problem("kernels", f"{given}: {why}", f"use {compiled}model.dropout=0, or memory=none")


RULES = (recomputing_is_capturable,)
