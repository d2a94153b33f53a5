"""Rules about what a memory option needs."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.spec import Choice

Problems = Iterator[Problem]


def blocks_needed(plan: Plan) -> Problems:
    """An option that works on blocks has some."""
    if plan.memory.needs_blocks and not plan.evidence.model.blocks:
        given = f"{names(plan.spec.memory)} works on blocks, and {plan.spec.model.name} has none: only lone layers"
        yield Problem("memory", given, "use memory=none, or a model with blocks")


def names(choices: tuple[Choice, ...]) -> str:
    """Options of an axis as they are typed."""
    return ", ".join(choice.name for choice in choices)


RULES = (blocks_needed,)
