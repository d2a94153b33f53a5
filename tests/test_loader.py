"""Order, resume, workers: the sequence of batches is a function of (seed, position) and of nothing else."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch

from trainer4090.data import Source
from trainer4090.data.pipeline.hashing import draws, key
from trainer4090.data.pipeline.loader import Position, epoch_order, evaluation_batches, training_batches
from trainer4090.data.pipeline.resident import Resident
from trainer4090.data.pipeline.sources import WindowSource, image_source
from trainer4090.errors import DataError
from trainer4090.records import Batch

START = Position(0, 0)
SEED = 5


def numbered(num_samples: int, shift: int = 0) -> Source:
    """Images whose label is the number of the sample."""
    images = torch.arange(num_samples * 9, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(-1, 1, 3, 3)
    return image_source(images, torch.arange(num_samples), seed=SEED, shift=shift)


@dataclass(frozen=True)
class Careless:
    """A mutant: augmentation from the generator of whichever process reads."""

    def __len__(self) -> int:
        return 7

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        return torch.rand(len(indices)), indices

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        return indices

    def resident(self, device: torch.device) -> Source:
        return self


def take(source: Source, count: int, batch_size: int = 4, start: Position = START, num_workers: int = 0) -> list[Any]:
    batches = training_batches(source, torch.Tensor.numel, batch_size, SEED, start, num_workers, pin=False)
    try:
        return list(islice(batches, count))
    finally:
        batches.close()  # type: ignore[attr-defined]


def same(first: list[tuple[Batch, Position]], second: list[tuple[Batch, Position]]) -> bool:
    """Whether two sequences agree in every bit and position."""
    return len(first) == len(second) and all(
        a.inputs.dtype == b.inputs.dtype
        and torch.equal(a.inputs, b.inputs)
        and torch.equal(a.targets, b.targets)
        and (a.num_targets, before) == (b.num_targets, after)
        for (a, before), (b, after) in zip(first, second, strict=True)
    )


def once_an_epoch(pairs: list[tuple[Batch, Position]], num_samples: int) -> bool:
    """Whether the batches up to the first position of each next epoch hold every sample exactly once."""
    epochs, labels = [], []
    for batch, position in pairs:
        labels += batch.targets.tolist()
        if position.consumed == 0:
            epochs.append(sorted(labels))
            labels = []
    return len(epochs) >= 2 and all(epoch == list(range(num_samples)) for epoch in epochs)


def test_draws_are_splitmix64():
    """Published outputs of the generator for seed 0."""
    values = [value % 2**64 for value in draws(0, torch.tensor([1, 2, 3])).tolist()]
    assert values == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_key_depends_on_every_counter_and_their_order():
    keys = {key(), key(0), key(1), key(0, 0), key(0, 1), key(1, 0), key(1, 1)}
    assert len(keys) == 7


def test_order_is_a_function_of_seed_and_epoch():
    order = epoch_order(3, 1, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert torch.equal(order, epoch_order(3, 1, 1000))
    assert all((order == other).float().mean() < 0.02 for other in (epoch_order(3, 2, 1000), epoch_order(4, 1, 1000)))


TAILS = [
    pytest.param(10, 4, [4, 4, 2], id="ragged"),
    pytest.param(9, 4, [4, 4, 1], id="tail of one"),
    pytest.param(8, 4, [4, 4], id="even"),
    pytest.param(3, 4, [3], id="smaller than a batch"),
    pytest.param(1, 1, [1], id="one sample"),
]


@pytest.mark.parametrize(("num_samples", "batch_size", "sizes"), TAILS)
def test_every_sample_once_an_epoch(num_samples: int, batch_size: int, sizes: list[int]):
    pairs = take(numbered(num_samples), 3 * len(sizes), batch_size)
    assert [len(batch.targets) for batch, _ in pairs] == 3 * sizes
    assert [batch.num_targets for batch, _ in pairs] == 3 * sizes
    assert once_an_epoch(pairs, num_samples)
    assert [position.epoch for _, position in pairs if position.consumed == 0] == [1, 2, 3]
    full = [pair for pair in pairs if len(pair[0].targets) == max(sizes)]
    assert len(full) == len(pairs) or not once_an_epoch(full, num_samples), "dropping the tail must show"


WINDOWS = WindowSource(torch.arange(60, dtype=torch.int32), length=4, num_samples=13, num_offsets=4, seed=SEED)
SOURCES = [pytest.param(numbered(11, shift=1), id="shifted images"), pytest.param(WINDOWS, id="text")]


@pytest.mark.parametrize("source", SOURCES)
def test_resume_at_every_position(source: Source):
    whole = take(source, 10)
    assert {position.epoch for _, position in whole} >= {0, 1, 2}
    for done, (_, position) in enumerate(whole[:-1], start=1):
        rest = take(source, len(whole) - done, start=position)
        assert same(rest, whole[done:]), position
    assert not same(take(source, 9), whole[1:]), "starting over must show"


def test_end_of_an_epoch_is_the_start_of_the_next():
    assert same(take(numbered(10), 4, start=Position(2, 10)), take(numbered(10), 4, start=Position(3, 0)))


def test_position_of_another_data_set():
    with pytest.raises(DataError, match="12 samples of epoch 1 were trained on, 10 are there"):
        take(numbered(10), 1, start=Position(1, 12))


def test_no_samples():
    with pytest.raises(DataError, match="no training sample"):
        take(numbered(0), 1)


def test_workers_give_the_same_bits_and_leave_no_trace():
    """11 samples, batch 4: eight batches cross two ends of epochs."""
    state = torch.get_rng_state()
    source = numbered(11, shift=1)
    assert same(take(source, 8, num_workers=2), take(source, 8))
    assert same(take(source, 5, num_workers=2, start=Position(1, 4)), take(source, 5, start=Position(1, 4)))
    assert torch.equal(state, torch.get_rng_state()), "dropout would depend on the number of workers"
    assert multiprocessing.active_children() == []
    assert not same(take(Careless(), 3, num_workers=1), take(Careless(), 3)), "a worker's own generator must show"


def test_evaluation_reads_everything_once_in_order():
    batches = list(evaluation_batches(numbered(10, shift=1), lambda targets: int((targets != 9).sum()), 4))
    assert torch.cat([batch.targets for batch in batches]).tolist() == list(range(10))
    assert [batch.num_targets for batch in batches] == [4, 4, 1]
    plain = torch.cat([batch.inputs for batch in evaluation_batches(numbered(10), torch.Tensor.numel, 10)])
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), plain), "evaluation is not augmented"


@pytest.mark.parametrize("source", SOURCES)
def test_resident_source_gives_the_same_batches(source: Any):
    resident = Resident(source, source, torch.device("cpu"))
    assert same(take(resident, 8), take(source, 8))
    assert same(take(resident, 8, num_workers=2), take(source, 8)), "read in this process"
    pairs = zip(evaluation_batches(resident, len, 3), evaluation_batches(source, len, 3), strict=True)
    assert all(torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets) for a, b in pairs)
    indices = torch.tensor([3, 0])
    assert torch.equal(resident.fetch(indices, 1)[0], source.fetch(indices, 1)[0])


@pytest.mark.parametrize("source", SOURCES)
def test_resident_targets_are_counted_without_reading_the_device(source: Source):
    """Tensors on `meta` have no values, so counting them there would raise."""
    resident = source.resident(torch.device("meta"))
    batches = training_batches(resident, lambda targets: int((targets >= 0).sum()), 4, SEED, START, 0, pin=True)
    batch, _ = next(batches)
    assert batch.inputs.device.type == batch.targets.device.type == "meta"
    assert batch.num_targets == batch.targets.numel()
    with pytest.raises((RuntimeError, NotImplementedError)):
        int((batch.targets >= 0).sum())


def test_position_counts_consumed_samples():
    """Workers are ahead of the position by what they prefetch."""
    pairs = take(numbered(40), 2, batch_size=3, num_workers=1)
    assert [position for _, position in pairs] == [Position(0, 3), Position(0, 6)]
