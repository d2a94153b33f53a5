"""Models by name. An entry returns the module and the names of its blocks; the networks are in `networks/`."""

from __future__ import annotations

from trainer4090.records import Model
from trainer4090.registry import Registry
from trainer4090.schema import Auto

MODELS: Registry[Model] = Registry("model", __name__)
"""Builders take `(config, data_traits)`; traits take `(config)` and return `ModelTraits` without importing torch."""


def explicit(value: Auto | int) -> int | None:
    """The number that was given, None for `auto`."""
    return None if value == "auto" else value


def filled(value: Auto | int, found: int) -> int:
    """The number that was given, for `auto` the one found in the data."""
    return found if value == "auto" else value


def nearest_multiples(value: int, divisor: int) -> str:
    """The multiples of `divisor` next to `value`, as words: `96 or 108`."""
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)
