"""How an item from outside the data set becomes a sample of it, as values.

Checkpoint files keep one, so that `predict` and `generate` need the file alone: no training data, no recipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Tokenizer = Literal["characters", "bytes", "bpe"]


@dataclass(frozen=True)
class ImageFormat:
    """From an image file to the tensor that the model takes."""

    channels: int
    """1 (grey) or 3 (red, green, blue)."""
    height: int
    width: int
    shorter_side: int | None
    """Pixels that the shorter side is resized to before the centre crop; None stretches to height x width."""
    mean: tuple[float, ...]
    """Of pixels in [0, 255]: one number, or one a channel."""
    deviation: tuple[float, ...]
    class_names: tuple[str, ...]
    """Name of output 0, 1, ...; () when the data has none."""


@dataclass(frozen=True)
class TokenFormat:
    """From a text to tokens and back."""

    tokenizer: Tokenizer
    vocabulary: str
    """Of `characters`: token t is character t of it. Of `bpe`: the tokenizer's own JSON. Of `bytes`: empty."""


ItemFormat = ImageFormat | TokenFormat
_KINDS = {"images": ImageFormat, "tokens": TokenFormat}


def to_plain(item_format: ItemFormat) -> dict[str, Any]:
    """The format as plain containers, `kind` first."""
    kind = next(name for name, record in _KINDS.items() if isinstance(item_format, record))
    values = dataclasses.asdict(item_format).items()
    return {"kind": kind, **{name: list(value) if isinstance(value, tuple) else value for name, value in values}}


def from_plain(tree: Mapping[str, Any]) -> ItemFormat:
    """The format that `to_plain` made `tree` from.

    Raises:
        KeyError, TypeError: it is of another version.
    """
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in tree.items()}
    return _KINDS[values.pop("kind")](**values)
