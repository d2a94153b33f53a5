"""Where a source lays out a batch that it fills piece by piece: where it is sent from, if that is known. Imports torch.

A worker process sends its batches in memory that the trainer's process reads. What is written there at once need not be
copied there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod

import torch

from trainer4090.item_format import ImageFormat

_offered: ContextVar[torch.Tensor | None] = ContextVar("offered", default=None)


@contextmanager
def offered(memory: torch.Tensor | None) -> Iterator[None]:
    """Within it the first `new_batch` that fits lies at the beginning of `memory`, uint8 (bytes,)."""
    token = _offered.set(memory)
    try:
        yield
    finally:
        _offered.reset(token)


def new_batch(shape: tuple[int, ...]) -> torch.Tensor:
    """Memory for a batch that is returned and not kept: uint8 of `shape`, with anything in it."""
    memory, size = _offered.get(), prod(shape)
    if memory is None or size > len(memory):
        return torch.empty(shape, dtype=torch.uint8)
    _offered.set(None)
    return memory[:size].view(shape)


def new_samples(number: int, item_format: ImageFormat) -> torch.Tensor:
    """Memory for images, uint8 (number, channels, height, width), with colours last, as decoders write them.

    Moving channels costs 0.1 ms an image of 224 pixels here (AMD EPYC), and a few microseconds a batch on the device.
    """
    height, width, channels = item_format.height, item_format.width, item_format.channels
    if channels == 1:
        return new_batch((number, 1, height, width))
    return new_batch((number, height, width, channels)).permute(0, 3, 1, 2)
