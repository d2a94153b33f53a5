"""Rules about what a precision needs of the card."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.card import Card
from trainer4090.errors import Problem
from trainer4090.plan import Plan

Problems = Iterator[Problem]

FLOAT8_CAPABILITY = (8, 9)
"""Compute capability from which tensor cores multiply float8: Ada Lovelace."""


def float8_on_its_cards(plan: Plan) -> Problems:
    """A GPU that multiplies float8."""
    card = plan.card
    if plan.precision.arithmetic == "float8" and card.device == "cuda" and not _multiplies_float8(card):
        capability = card.compute_capability or "unknown"
        given = f"{plan.spec.precision.name}, but {card.device_name} (compute capability {capability}) has no float8"
        yield Problem("precision", given, "use precision=bf16, or a card of compute capability 8.9 or more")


def _multiplies_float8(card: Card) -> bool:
    if card.compute_capability is None:
        return card.fp8_tflops is not None
    major, _, minor = card.compute_capability.partition(".")
    return (int(major), int(minor or 0)) >= FLOAT8_CAPABILITY


RULES = (float8_on_its_cards,)
