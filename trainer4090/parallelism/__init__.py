"""Axis `parallelism`: how many cards share an update, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainer4090.records import Notice, Settings, Transform
from trainer4090.registry import Registry


@dataclass(frozen=True)
class Degrees:
    """How cards are shared out: cards = data x stages."""

    data: int = 1
    """Ranks that train on different samples of a batch."""
    stages: int = 1
    """Ranks that hold different parts of the model."""

    @property
    def ranks(self) -> int:
        """Processes that train, one a card."""
        return self.data * self.stages


@dataclass(frozen=True)
class Parallelism:
    """Facts and effects of a parallelism option."""

    executor: Literal["local", "replicated"] = "local"
    max_cards: int | None = 1
    """None for any number."""
    transforms: tuple[Transform, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notices: tuple[Notice, ...] = ()


PARALLELISM: Registry[Parallelism] = Registry("parallelism", __name__)
"""Traits take `(config, cards)` and return `Degrees`; an option without traits has one rank."""


def degrees(name: str, config: object, cards: int) -> Degrees:
    """How an option shares out `cards`."""
    traits = PARALLELISM.get(name).traits
    return Degrees() if traits is None else traits(config, cards)
