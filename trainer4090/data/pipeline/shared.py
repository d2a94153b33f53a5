"""Training batches of a rank that reads a share of each. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import tee
from typing import final

import torch

from trainer4090.data import Source
from trainer4090.data.pipeline.loader import (
    CountTargets,
    Position,
    SliceFetcher,
    after,
    epoch_order,
    reader,
    slices_from,
)
from trainer4090.data.pipeline.resident import Resident
from trainer4090.data.pipeline.share import Share, Slice
from trainer4090.data.pipeline.workers import Fetched, fetch_in_workers
from trainer4090.records import Batch, Whole

NOTHING = Fetched((), torch.empty(0))
"""What a rank reads of an epoch's tail that has no micro-batch for it."""


def shared_batches(
    source: Source,
    count_targets: CountTargets,
    share: Share,
    seed: int,
    start: Position,
    num_workers: int,
    pin: bool,
) -> Generator[tuple[Batch, Position], None, None]:
    """This rank's share of every batch that all ranks read together, without end; the others as `training_batches`.

    The number of targets is that of the whole batch: every rank knows the order of all samples, so each counts for
    itself, and none waits for another.
    """
    order_of = partial(epoch_order, seed, num_samples=len(source))
    count = _TargetCount(source, count_targets, order_of)
    parts, ahead = tee(slices_from(len(source), share.stride * share.size, start))
    own = (part for part in map(share.own, ahead) if part.end > part.begin)
    if num_workers and not isinstance(source, Resident):
        fetched = fetch_in_workers(SliceFetcher(source, seed, share), own, num_workers, pin)
    else:
        fetched = _read_here(source, share, order_of, own, pin)
    with closing(fetched):
        for part in parts:
            mine = share.own(part)
            samples = next(fetched) if mine.end > mine.begin else NOTHING
            whole = Whole(part.epoch, part.begin, part.end - part.begin)
            yield Batch(samples.inputs, samples.targets, count(part), whole), after(part, len(source))


def _read_here(
    source: Source, share: Share, order_of: Callable[[int], torch.Tensor], own: Iterator[Slice], pin: bool
) -> Generator[Fetched, None, None]:
    epoch, read = None, None
    pin = pin and not isinstance(source, Resident)
    for part in own:
        if read is None or part.epoch != epoch:
            epoch, read = part.epoch, reader(source, share.order(order_of(part.epoch)), part.epoch)
        samples, _ = read(part.begin, part.end)
        yield samples.pin_memory() if pin else samples


@final
class _TargetCount:
    """Counts the targets of batches of which this process reads a share."""

    def __init__(self, source: Source, count_targets: CountTargets, order_of: Callable[[int], torch.Tensor]) -> None:
        """`order_of` gives the order of an epoch."""
        self._source = source
        self._count_targets = count_targets
        self._order_of = order_of
        self._epoch: int | None = None
        self._order = torch.empty(0)

    def __call__(self, part: Slice) -> int:
        """Valid targets of `part` of the order of all samples."""
        if part.epoch != self._epoch:
            self._epoch, self._order = part.epoch, self._order_of(part.epoch)
        return self._count_targets(self._source.targets(self._order[part.begin : part.end], part.epoch))
