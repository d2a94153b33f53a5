"""Batches in an order that is a function of (seed, epoch), wherever a resume starts and whoever reads. Imports torch.

A position counts samples that were trained on, never samples that were prefetched, so it is what a checkpoint file
keeps. Nothing here draws from torch's generators: dropout is the same with and without worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from trainer4090.data import Source
from trainer4090.data.pipeline.hashing import draws, key
from trainer4090.data.pipeline.resident import Resident
from trainer4090.data.pipeline.share import Share, Slice
from trainer4090.data.pipeline.workers import Fetched, fetch_in_workers
from trainer4090.errors import DataError, Problem
from trainer4090.records import Batch

CountTargets = Callable[[torch.Tensor], int]
"""Targets on the host -> number of valid ones (`Loss.count`)."""
_ORDER_STREAM = 3
STRETCH_MIB, MOST_BATCHES = 16, 64
"""What is read of a resident source at once at most, if it is more than a batch."""


@dataclass(frozen=True)
class Position:
    """Where training stands in the data; `consumed` samples of `epoch` are trained on."""

    epoch: int
    consumed: int


def epoch_order(seed: int, epoch: int, num_samples: int) -> torch.Tensor:
    """The permutation of an epoch, int64 (num_samples,), a function of (seed, epoch) alone."""
    return draws(key(seed, _ORDER_STREAM, epoch), torch.arange(num_samples)).argsort(stable=True)


def training_batches(
    source: Source,
    count_targets: CountTargets,
    batch_size: int,
    seed: int,
    start: Position,
    num_workers: int,
    pin: bool,
) -> Generator[tuple[Batch, Position], None, None]:
    """Batches without end, each with the position after it; closing the iterator ends its worker processes.

    The last batch of an epoch may be smaller; none is dropped. A resident source is read in this process whatever
    `num_workers` says, and its batches lie on its device. `pin` needs an accelerator.

    Raises:
        DataError: the source is empty, or `start` lies beyond its end.
    """
    num_samples = len(source)
    if not num_samples:
        raise DataError(Problem("data", "no training sample", "give a data set with at least one"))
    if start.consumed > num_samples:
        given = f"{start.consumed} samples of epoch {start.epoch} were trained on, {num_samples} are there"
        raise DataError(Problem("data", given, "resume with the data set that the run began with"))
    slices = slices_from(num_samples, batch_size, start)
    if num_workers and not isinstance(source, Resident):
        ahead = slices_from(num_samples, batch_size, start)
        results = fetch_in_workers(SliceFetcher(source, seed), ahead, num_workers, pin)
        return _batches_from(results, count_targets, num_samples, slices)
    return _batches_here(source, count_targets, seed, slices, pin)


def evaluation_batches(
    source: Source,
    count_targets: CountTargets,
    batch_size: int,
    num_workers: int = 0,
    pin: bool = False,
    share: Share | None = None,
) -> Generator[Batch, None, None]:
    """Every sample once, in order, without augmentation; closing the iterator ends its worker processes.

    `share`: of the batches, each of which one rank reads.
    """
    order = torch.arange(len(source))
    order = order if share is None else share.order(order)
    if num_workers and not isinstance(source, Resident):
        parts = (Slice(-1, begin, begin + batch_size) for begin in range(0, len(order), batch_size))
        with closing(fetch_in_workers(SliceFetcher(source, 0, share), parts, num_workers, pin)) as results:
            for samples in results:
                yield Batch(samples.inputs, samples.targets, count_targets(samples.targets))
        return
    read = reader(source, order, epoch=-1)
    for begin in range(0, len(order), batch_size):
        samples, host_targets = read(begin, begin + batch_size)
        yield Batch(samples.inputs, samples.targets, count_targets(host_targets))


class SliceFetcher:
    """Samples of a slice. It keeps the order of one epoch, which each worker process makes for itself."""

    def __init__(self, source: Source, seed: int, share: Share | None = None) -> None:
        """`source` is pickled with it for every worker process. Slices are those of the share's own order."""
        self._source = source
        self._seed = seed
        self._share = share
        self._epoch = -1
        self._order = self._own(torch.arange(len(source)))  # of epoch -1, which is evaluation

    def __call__(self, part: Slice) -> Fetched:
        """Inputs and targets of `part`, on the host."""
        if part.epoch != self._epoch:
            order = epoch_order(self._seed, part.epoch, len(self._source))
            self._epoch, self._order = part.epoch, self._own(order)
        return Fetched(*self._source.fetch(self._order[part.begin : part.end], part.epoch))

    def _own(self, order: torch.Tensor) -> torch.Tensor:
        return order if self._share is None else self._share.order(order)


def slices_from(num_samples: int, batch_size: int, start: Position) -> Iterator[Slice]:
    """The batches of all epochs behind a position, without end."""
    epoch, begin = start.epoch, start.consumed
    while True:
        while begin < num_samples:
            end = min(begin + batch_size, num_samples)
            yield Slice(epoch, begin, end)
            begin = end
        epoch, begin = epoch + 1, 0


def after(part: Slice, num_samples: int) -> Position:
    """The position behind a batch."""
    return Position(part.epoch, part.end) if part.end < num_samples else Position(part.epoch + 1, 0)


def reader(source: Source, order: torch.Tensor, epoch: int) -> Callable[[int, int], tuple[Fetched, torch.Tensor]]:
    """(begin, end) -> the samples of that part of `order`, and their targets on the host."""
    if isinstance(source, Resident):
        return _Stretches(source, order, epoch)

    def read(begin: int, end: int) -> tuple[Fetched, torch.Tensor]:
        samples = Fetched(*source.fetch(order[begin:end], epoch))
        return samples, samples.targets

    return read


@final
class _Stretches:
    """Reads many batches of a resident source at once and hands out views of them.

    Looking up a small batch takes more host time than a captured update of a small model: five launches for one.
    """

    def __init__(self, source: Resident, order: torch.Tensor, epoch: int) -> None:
        on_host = order.pin_memory() if source.device.type == "cuda" else order
        # One transfer an epoch instead of one a batch, and the loop does not wait for it.
        self._placed = on_host.to(source.device, non_blocking=True)
        self._source, self._order, self._epoch = source, order, epoch
        self._begin = self._end = 0
        self._samples = Fetched((), order)
        self._targets = order

    def __call__(self, begin: int, end: int) -> tuple[Fetched, torch.Tensor]:
        """Samples `begin` to `end` of the order, and their targets on the host."""
        if not self._begin <= begin < end <= self._end:
            self._read(begin, end)
        part = slice(begin - self._begin, end - self._begin)
        inputs = tree_map(lambda tensor: tensor[part], self._samples.inputs)
        return Fetched(inputs, self._samples.targets[part]), self._targets[part]

    def _read(self, begin: int, end: int) -> None:
        batch = Fetched(*self._source.placed.fetch(self._placed[begin:end], self._epoch))
        num_bytes = sum(tensor.nbytes for tensor in (*tree_leaves(batch.inputs), batch.targets))
        num_batches = min(STRETCH_MIB * 2**20 // max(num_bytes, 1), MOST_BATCHES)
        self._begin, self._end, self._samples = begin, end, batch
        if num_batches > 1:
            self._end = min(begin + num_batches * (end - begin), len(self._order))
            self._samples = Fetched(*self._source.placed.fetch(self._placed[begin : self._end], self._epoch))
        self._targets = self._source.targets(self._order[begin : self._end], self._epoch)


def _batches_here(
    source: Source, count_targets: CountTargets, seed: int, slices: Iterator[Slice], pin: bool
) -> Generator[tuple[Batch, Position], None, None]:
    num_samples, epoch, read = len(source), None, None
    pin = pin and not isinstance(source, Resident)
    for part in slices:
        if read is None or part.epoch != epoch:
            epoch, read = part.epoch, reader(source, epoch_order(seed, part.epoch, num_samples), part.epoch)
        # No variable here holds the batch: memory of the one before is free, and warm, when the next is read.
        yield _batch(*read(part.begin, part.end), count_targets, pin), after(part, num_samples)


def _batch(samples: Fetched, host_targets: torch.Tensor, count_targets: CountTargets, pin: bool) -> Batch:
    num_targets = count_targets(host_targets)
    samples = samples.pin_memory() if pin else samples
    return Batch(samples.inputs, samples.targets, num_targets)


def _batches_from(
    results: Generator[Fetched, None, None], count_targets: CountTargets, num_samples: int, slices: Iterator[Slice]
) -> Generator[tuple[Batch, Position], None, None]:
    with closing(results):
        for part, samples in zip(slices, results, strict=False):
            batch = Batch(samples.inputs, samples.targets, count_targets(samples.targets))
            yield batch, after(part, num_samples)
