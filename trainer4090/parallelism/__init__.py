"""Axis `parallelism`: how many cards share an update, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer4090.registry import Registry


@dataclass(frozen=True)
class Parallelism:
    """Facts of a parallelism option."""

    executor: Literal["local"] = "local"
    max_cards: int = 1


PARALLELISM: Registry[Parallelism] = Registry("parallelism", __name__)
