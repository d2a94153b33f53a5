"""Rules about what a kernels option needs of the others."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.rules.memory import names

Problems = Iterator[Problem]


def padding_stays_zero(plan: Plan) -> Problems:
    """An optimizer that looks at a whole matrix would see its padding, and may move it."""
    if plan.kernels.pads_weights and not plan.optimizer.elementwise:
        given = f"{plan.spec.optimizer.name} beside kernels={names(plan.spec.kernels)}, whose zeros it might move"
        remedy = "drop align, or use an optimizer that moves each number on its own: optimizer=sgd, optimizer=adamw"
        yield Problem("optimizer", given, remedy)


RULES = (padding_stays_zero,)
