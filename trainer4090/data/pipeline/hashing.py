"""Counter-based random numbers: a draw is a function of its counters alone, on any device and in any process.

Source: G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number generators (2014), SplitMix64. The data
never uses torch's generators, so the order of a run is the same with every version of torch. Imports torch.
"""

from __future__ import annotations

import torch

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1


def key(*counters: int) -> int:
    """A number in [0, 2^64) that depends on every counter and on their order."""
    state = 0
    for counter in counters:
        state = (state ^ counter) + _GAMMA & _MASK
        state = (state ^ state >> 30) * _FIRST & _MASK
        state = (state ^ state >> 27) * _SECOND & _MASK
        state ^= state >> 31
    return state


def draws(stream: int, indices: torch.Tensor) -> torch.Tensor:
    """64 random bits an index, int64 of the shape and device of `indices` (int64); `stream` comes from `key`."""
    state = indices * _signed(_GAMMA) + _signed(stream)
    state = (state ^ _shift_right(state, 30)) * _signed(_FIRST)
    state = (state ^ _shift_right(state, 27)) * _signed(_SECOND)
    return state ^ _shift_right(state, 31)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift_right(state: torch.Tensor, bits: int) -> torch.Tensor:
    # torch shifts int64 arithmetically; the mask makes it the logical shift of the definition.
    return (state >> bits) & (2 ** (64 - bits) - 1)
