"""The cap on what a run may reserve of its card: a smaller card on a larger one, or room for a desktop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainer4090.card import Card
from trainer4090.errors import Problem
from trainer4090.records import Notice

KEY = "memory_cap_gib"
MIB_PER_GIB = 1024


@dataclass(frozen=True)
class MemoryCap:
    """What holds on a card, and what the plan says about it."""

    gib: float | None = None
    """Most that torch's allocator may reserve; None is all of the card, and always so on a CPU."""
    label: str = ""
    """"" where there is nothing to say."""
    notices: tuple[Notice, ...] = ()


def memory_cap(asked_gib: float | None, card: Card) -> MemoryCap:
    """The cap that `memory_cap_gib` sets on `card`."""
    if asked_gib is None:
        return MemoryCap()
    if card.device != "cuda":
        why = "it bounds what torch's allocator reserves on a GPU, and a CPU's memory is the system's"
        return MemoryCap(notices=(Notice(KEY, f"{asked_gib:g} GiB", "no cap", why),))
    total = "" if card.memory_mib is None else f" of {_total_gib(card.memory_mib):g}"
    return MemoryCap(asked_gib, f"{asked_gib:g}{total} GiB, as {KEY} says")


def problems(cap: MemoryCap, card: Card) -> Iterator[Problem]:
    """A cap beyond the memory of the card, where that is known: it would cap nothing."""
    if cap.gib is None or card.memory_mib is None or cap.gib * MIB_PER_GIB <= card.memory_mib:
        return
    total = f"{_total_gib(card.memory_mib):g}"
    given = f"{cap.gib:g}, but {card.device_name} has {total} GiB"
    yield Problem(KEY, given, f"give at most {total}, or null for all of it")


def _total_gib(memory_mib: int) -> float:
    """Rounded down to two digits, so that what is printed is allowed."""
    return math.floor(100 * memory_mib / MIB_PER_GIB) / 100
