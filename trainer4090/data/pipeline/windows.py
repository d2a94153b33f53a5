"""Windows over a row of tokens: how many there are, and where an epoch may begin. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Windows:
    """Samples of a text that is cut into windows of one length, each target being one token further."""

    num_train: int
    num_evaluation: int
    num_offsets: int
    """A training epoch begins at one of these offsets: 0, 1, ..."""


def windows(num_train_tokens: int, num_evaluation_tokens: int, length: int) -> Windows:
    """The windows of both parts of a text, each of which holds at least `length + 1` tokens."""
    # One window less than fits at offset 0, so that offsets have room; at least one.
    num_train = max(1, (num_train_tokens - length) // length)
    # The last window and its next token end inside the text for each of these offsets.
    num_offsets = min(length, num_train_tokens - num_train * length)
    return Windows(num_train, (num_evaluation_tokens - 1) // length, num_offsets)
