"""Memory of batches is used again, and never while anything still lies in it."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from trainer4090.data.pipeline.batch_memory import new_batch
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.data.pipeline.slots import Fetched, Sent, Slots
from trainer4090.data.pipeline.sources import TensorSource

LAST = torch.channels_last


def fetched(inputs: Any, num_targets: int = 3) -> Fetched:
    return Fetched(inputs, torch.arange(num_targets))


def sent_in_a_slot(slots: Slots, samples: Fetched) -> Sent:
    """`samples` in a slot of their size."""
    slots.grow(slots.writer().write(samples, None).wanted)
    return slots.writer().write(samples, slots.take())


INPUTS: dict[str, Callable[[], Any]] = {
    "images": lambda: torch.randint(0, 256, (4, 3, 5, 7), dtype=torch.uint8),
    "channels-last": lambda: torch.randn(4, 3, 5, 7).contiguous(memory_format=LAST),
    "pair": lambda: (torch.randn(3, 3, dtype=torch.float64), torch.tensor([True, False, True])),
    "words": lambda: {"tokens": torch.arange(5, dtype=torch.int32), "lengths": [torch.tensor([5])]},
    "half": lambda: [torch.randn(3).half(), torch.randn(5).bfloat16(), torch.randn(2, dtype=torch.complex64)],
    "no-dimension": lambda: torch.tensor(7),
    "empty": lambda: torch.empty(0, 4),
    "part-of-a-tensor": lambda: torch.arange(24).reshape(4, 6)[:, 1:3],
    "one-row-for-all": lambda: torch.arange(3).expand(4, 3),
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_samples_come_back_as_they_were(make: Callable[[], Any]) -> None:
    samples = fetched(make())
    slots = Slots(1)
    sent = sent_in_a_slot(slots, samples)
    assert sent.placed
    for found, wanted in zip(tree_leaves(slots.read(sent).inputs), tree_leaves(samples.inputs), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape) and torch.equal(found, wanted)
        assert wanted.ndim != 4 or found.is_contiguous(memory_format=LAST) == wanted.is_contiguous(memory_format=LAST)


def laid_out(*shapes: tuple[int, ...]) -> Fetched:
    """Batches of bytes that all differ, in memory that is asked for."""
    batches = [new_batch(shape) for shape in shapes]
    for number, batch in enumerate(batches):
        batch.copy_(torch.arange(batch.numel()).view(batch.shape) % 251 + number)
    return fetched(batches[0] if len(batches) == 1 else batches)


LAID_OUT = {"one": [(4, 6, 7)], "two": [(4, 6, 7), (4, 6, 7)], "too-large": [(4, 600, 700)]}


@pytest.mark.parametrize(("shapes"), LAID_OUT.values(), ids=LAID_OUT)
def test_a_batch_that_is_filled_in_its_slot_arrives_as_it_is(shapes: list[tuple[int, ...]]) -> None:
    slots, wanted = Slots(1), laid_out(*shapes)
    slots.grow(1000)
    slot = slots.take()
    sent = slots.writer().fetched(lambda: laid_out(*shapes), slot)
    assert sent.placed == (shapes != LAID_OUT["too-large"])
    found = slots.read(sent)
    for first, second in zip(tree_leaves(found.inputs), tree_leaves(wanted.inputs), strict=True):
        assert torch.equal(first, second)
    assert torch.equal(found.targets, wanted.targets)


def test_a_batch_is_filled_in_its_slot_and_not_copied() -> None:
    """What is written into it after the sending is seen by the reader."""
    slots, kept = Slots(1), []

    def fetch() -> Fetched:
        kept.append(new_batch((4, 5)).fill_(1))
        return fetched(kept[0])

    slots.grow(1000)
    writer = slots.writer()
    samples = slots.read(writer.fetched(fetch, slots.take()))
    kept[0].fill_(2)
    assert (samples.inputs == 2).all()
    assert not torch.equal(new_batch((4, 5)).fill_(3), samples.inputs), "the offer is over"


@pytest.mark.parametrize("beside", [torch.arange(3), torch.zeros(3, requires_grad=True)], ids=["no-room", "no-bytes"])
def test_a_batch_that_cannot_stay_in_its_slot_leaves_it(beside: torch.Tensor) -> None:
    slots = Slots(1)
    slots.grow(1000)
    slot = slots.take()
    assert slot is not None
    writer = slots.writer()
    sent = writer.fetched(lambda: Fetched(new_batch((slot.size,)).fill_(1), beside), slot)
    assert not sent.placed
    writer.fetched(lambda: Fetched(new_batch((8,)).fill_(2), torch.arange(3)), slot)
    assert (slots.read(sent).inputs == 1).all()


HOLDERS: dict[str, Callable[[Fetched], Any]] = {
    "tensor": lambda samples: samples.inputs,
    "targets": lambda samples: samples.targets,
    "view": lambda samples: samples.inputs[1:].flatten(1),
    "array": lambda samples: samples.inputs[0].numpy(),
    "storage": lambda samples: samples.inputs.untyped_storage(),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_slot_is_free_when_nothing_lies_in_it(holder: Callable[[Fetched], Any]) -> None:
    slots = Slots(1)
    sent = sent_in_a_slot(slots, fetched(torch.randn(2, 3, 4, 4)))
    held = holder(slots.read(sent))
    gc.collect()
    assert slots.take() is None
    del held
    assert slots.take() == sent.slot


def test_memory_outlives_its_slots() -> None:
    slots = Slots(1)
    samples = slots.read(sent_in_a_slot(slots, fetched(torch.arange(9))))
    del slots
    gc.collect()
    assert samples.inputs.tolist() == list(range(9))


def test_larger_batches_get_larger_slots_and_no_more_than_are_needed() -> None:
    slots = Slots(2)
    writer = slots.writer()
    for _ in range(5):
        slots.grow(5000)
    small = slots.take()
    assert small is not None and slots.take() is not None and slots.take() is None
    too_large = writer.write(fetched(torch.zeros(20_000)), small)
    assert not too_large.placed and too_large.wanted > small.size
    slots.grow(too_large.wanted)
    assert slots.read(too_large) is too_large.samples
    large = slots.take()
    assert large is not None and large.size >= too_large.wanted and slots.take() is None


STAYS = {
    "shared": lambda: torch.zeros(3).share_memory_(),
    "gradient": lambda: torch.zeros(3, requires_grad=True),
    "sparse": lambda: torch.zeros(3, 3).to_sparse(),
    "subclass": lambda: torch.nn.Parameter(torch.zeros(3), requires_grad=False),
    "conjugate": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
    "a-word-beside": lambda: (torch.zeros(3), "cat"),
}


@pytest.mark.parametrize("make", STAYS.values(), ids=STAYS)
def test_what_is_more_than_bytes_travels_as_it_is(make: Callable[[], Any]) -> None:
    slots, samples = Slots(1), fetched(make())
    slots.grow(100)
    slot = slots.take()
    sent = slots.writer().write(samples, slot)
    assert slots.read(sent) is samples and sent.wanted == 0
    assert slots.take() == slot, "it is free again"


def test_pinned_samples_leave_their_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    slots, inputs = Slots(1), torch.randn(2, 3)
    sent = sent_in_a_slot(slots, fetched(inputs))
    samples = slots.read(sent.pin_memory())
    assert torch.equal(samples.inputs, inputs)
    assert slots.take() == sent.slot


ROWS = torch.arange(40 * 1000).reshape(40, 1000)


def batches_of(num_batches: int, pin: bool = False) -> Any:
    source = TensorSource(ROWS, torch.arange(40))
    batches = training_batches(source, torch.Tensor.numel, 4, 0, Position(0, 0), 2, pin)
    return (batch for batch, _ in islice(batches, num_batches))


def test_batches_of_workers_share_memory_one_after_the_other() -> None:
    places = set()
    for batch in batches_of(40):
        assert torch.equal(batch.inputs, ROWS[batch.targets])
        places.add(batch.inputs.data_ptr())
    assert len(places) < 20
    gc.collect()
    assert multiprocessing.active_children() == []


def test_batches_that_are_kept_stay_as_they_are() -> None:
    kept = list(batches_of(40))
    assert all(torch.equal(batch.inputs, ROWS[batch.targets]) for batch in kept)
    assert len({batch.inputs.data_ptr() for batch in kept}) == 40


@pytest.mark.gpu
def test_pinned_batches_of_workers_arrive_as_they_are() -> None:
    for batch in batches_of(40, pin=True):
        assert batch.inputs.is_pinned() and batch.targets.is_pinned()
        placed = batch.inputs.to("cuda", non_blocking=True)
        assert torch.equal(placed.cpu(), ROWS[batch.targets])
