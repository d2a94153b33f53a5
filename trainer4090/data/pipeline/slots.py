"""Memory that worker processes write batches into, and that is used again. Imports torch.

torch makes new shared memory for every batch: the system zeroes and maps it page by page, in the worker and again in
the reader, which costs more than to write it. For 64 images of 224 pixels that is 0.16 ms of CPU an image; into pages
that are there, 0.01 (AMD EPYC, Linux 6.18, torch 2.14).

A slot belongs to a task from when it is handed out until the last tensor that lies in it is gone, whoever holds that
tensor or a view of it. Where no slot is free, a batch travels as torch would send it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from trainer4090.data.pipeline.batch_memory import offered

_ALIGNMENT = 64
"""Bytes; of every tensor in a slot."""
_numbers = count()
_known: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()
"""Slots of this process by number: torch's pinning thread has a number and nothing else."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """Samples on the host: a pytree of inputs and a tensor of targets."""

    inputs: Any
    targets: torch.Tensor

    def pin_memory(self) -> Fetched:
        """The same samples in page-locked memory."""
        return self.mapped(torch.Tensor.pin_memory)

    def mapped(self, function: Callable[[Any], Any]) -> Fetched:
        """The same with `function` applied to every leaf."""
        return Fetched(tree_map(function, self.inputs), function(self.targets))


@dataclass(frozen=True)
class Slot:
    """A part of the shared file; both in bytes and whole pages."""

    offset: int
    size: int


@dataclass(frozen=True)
class _Place:
    """A tensor in a slot."""

    begin: int
    end: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor in `memory`, uint8 (slot size,)."""
        return memory[self.begin : self.end].view(self.dtype).as_strided(self.shape, self.stride)


@dataclass(frozen=True, eq=False)
class Sent:
    """What a worker sends: samples, or places of their tensors in the slot."""

    owner: int
    slot: Slot | None
    """The task's; unused unless `placed`."""
    placed: bool
    samples: Fetched
    wanted: int
    """Bytes of the slot that these samples missed; 0 where they have one, or cannot use one."""

    def pin_memory(self) -> Sent:
        """The same in page-locked memory; torch's pinning thread calls this by its name."""
        return replace(self, slot=None, placed=False, samples=_known[self.owner].read(self).pin_memory())


class Slots:
    """Up to `most` slots, made as batches miss them. Belongs to the process that reads the batches."""

    def __init__(self, most: int) -> None:
        """No memory is used before the first batch has come."""
        self._file = _SharedFile(os.memfd_create("trainer4090-batches"))
        self._most, self._size, self._num_slots = most, 0, 0
        self._free: list[Slot] = []
        self._number = next(_numbers)
        _known[self._number] = self

    def writer(self) -> Writer:
        """What writes into these slots, to be pickled for a worker process."""
        return Writer(self._number, self._file)

    def take(self) -> Slot | None:
        """A free slot, which is the caller's from now on; None when there is none."""
        # The last one that was used: its pages are mapped, and some of it is still in the cache.
        return self._free.pop() if self._free else None

    def read(self, sent: Sent) -> Fetched:
        """The samples, not copied. Their slot is free again when the last tensor in it is gone."""
        if sent.slot is None:
            return sent.samples
        if not sent.placed:
            self._release(sent.slot)
            return sent.samples
        # Held by the memory of the tensors alone: torch lets go of it when the last one that shares it is freed.
        array = np.frombuffer(self._file.mapped(sent.slot), dtype=np.uint8)
        weakref.finalize(array, self._release, sent.slot).atexit = False
        memory = torch.from_numpy(array)
        return sent.samples.mapped(lambda place: place.tensor(memory))

    def grow(self, wanted: int) -> None:
        """Add a slot that `wanted` bytes fit into, as long as there are not enough; smaller ones are used no more."""
        if wanted > self._size:
            # A power of two, so that lengths which creep up leave little behind; untouched pages take no memory.
            self._size = max(mmap.PAGESIZE, 1 << (wanted - 1).bit_length())
            self._num_slots = 0
            self._free.clear()
        if wanted and self._num_slots < self._most:
            self._num_slots += 1
            self._free.append(self._file.extended(self._size))

    def _release(self, slot: Slot) -> None:
        if slot.size == self._size:
            self._free.append(slot)


class Writer:
    """Writes samples into slots, in a worker process."""

    def __init__(self, owner: int, file: _SharedFile) -> None:
        """`owner`: number of the slots in the process that reads."""
        self._owner = owner
        self._file = file

    def fetched(self, fetch: Callable[[], Fetched], slot: Slot | None) -> Sent:
        """What `fetch` returns, written into `slot` by itself (`new_batch`) or after it."""
        with offered(None if slot is None else self._memory(slot)):
            samples = fetch()
        return self.write(samples, slot)

    def write(self, samples: Fetched, slot: Slot | None) -> Sent:
        """`samples` in `slot`; as they are when there is none or they do not fit."""
        memory = torch.empty(0, dtype=torch.uint8) if slot is None else self._memory(slot)
        leaves = tree_leaves((samples.inputs, samples.targets))
        if not all(_movable(leaf) for leaf in leaves):
            return Sent(self._owner, slot, False, _taken_out(samples, memory), 0)
        leaves = [leaf if _dense(leaf) else leaf.contiguous() for leaf in leaves]
        places, end = _places(leaves, memory)
        if slot is None or end > slot.size:
            return Sent(self._owner, slot, False, _taken_out(samples, memory), end)
        for leaf, place in zip(leaves, places, strict=True):
            if not _lies_in(leaf, memory):
                place.tensor(memory).copy_(leaf)
        following = iter(places)
        return Sent(self._owner, slot, True, samples.mapped(lambda leaf: next(following)), 0)

    def _memory(self, slot: Slot) -> torch.Tensor:
        return torch.frombuffer(self._file.mapped(slot), dtype=torch.uint8)


def _places(leaves: list[torch.Tensor], memory: torch.Tensor) -> tuple[list[_Place], int]:
    """A place for each leaf, and the end of them all: where it lies already, or after those that do."""
    begins = [leaf.data_ptr() - memory.data_ptr() if _lies_in(leaf, memory) else None for leaf in leaves]
    end = max((begin + leaf.nbytes for begin, leaf in zip(begins, leaves, strict=True) if begin is not None), default=0)
    places = []
    for leaf, begin in zip(leaves, begins, strict=True):
        if begin is None:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + leaf.nbytes
        places.append(_Place(begin, begin + leaf.nbytes, tuple(leaf.shape), leaf.stride(), leaf.dtype))
    return places, end


def _lies_in(leaf: Any, memory: torch.Tensor) -> bool:
    if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or leaf.device.type != "cpu":
        return False
    return 0 <= leaf.data_ptr() - memory.data_ptr() < len(memory)


def _taken_out(samples: Fetched, memory: torch.Tensor) -> Fetched:
    """`samples` without a tensor in `memory`, which is about to be used for others."""
    if not any(_lies_in(leaf, memory) for leaf in tree_leaves((samples.inputs, samples.targets))):
        return samples
    return samples.mapped(lambda leaf: leaf.clone() if _lies_in(leaf, memory) else leaf)


def _movable(leaf: Any) -> bool:
    """Whether bytes are all of it; what lies in shared memory already is better sent as it is."""
    return (
        type(leaf) is torch.Tensor
        and leaf.layout == torch.strided
        and leaf.device.type == "cpu"
        and not (leaf.requires_grad or leaf.is_quantized or leaf.is_conj() or leaf.is_neg() or leaf.is_shared())
    )


def _dense(leaf: torch.Tensor) -> bool:
    return leaf.is_contiguous() or (leaf.ndim == 4 and leaf.is_contiguous(memory_format=torch.channels_last))


class _SharedFile:
    """A file in memory, without a name; a worker process inherits it by pickling."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._length = 0
        self._mappings: dict[Slot, mmap.mmap] = {}
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> Any:
        return _inherited, (DupFd(self._descriptor),)

    def extended(self, size: int) -> Slot:
        """A new slot at the end."""
        slot = Slot(self._length, size)
        self._length += size
        os.ftruncate(self._descriptor, self._length)
        return slot

    def mapped(self, slot: Slot) -> mmap.mmap:
        """The memory of `slot`, mapped once: the pages of a new mapping would have to be found anew."""
        if slot not in self._mappings:
            self._mappings[slot] = mmap.mmap(self._descriptor, slot.size, offset=slot.offset)
        return self._mappings[slot]


def _inherited(descriptor: Any) -> _SharedFile:
    return _SharedFile(descriptor.detach())
