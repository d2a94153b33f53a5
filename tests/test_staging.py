"""The copy stream: whatever order the device takes two streams in, as far as events allow, an update reads its batch.

CUDA's streams and events are played by queues, which a random scheduler empties.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from trainer4090.executors import staging
from trainer4090.executors.places import Place
from trainer4090.executors.staging import NUM_SLOTS, Staging
from trainer4090.records import Batch

META = torch.device("cpu", 0)
"""Another device than that of the host's tensors, `cpu`."""
Work = Callable[[], bool]
"""Returns whether it could run."""


class FakeEvent:
    def __init__(self) -> None:
        self.recorded = self.reached = 0

    def record(self, stream: FakeStream) -> None:
        self.recorded += 1
        stream.give(lambda number=self.recorded: setattr(self, "reached", max(self.reached, number)))


class FakeStream:
    def __init__(self, device: Any = None) -> None:
        self.queue: list[Work] = []

    def give(self, work: Callable[[], object]) -> None:
        self.queue.append(lambda: (work(), True)[1])

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(lambda number=event.recorded: event.reached >= number)


class FakeDevice:
    """The two streams, and which is the current one."""

    def __init__(self) -> None:
        self.compute, self.current = FakeStream(), None
        self.streams = [self.compute]

    def new_stream(self, device: Any = None) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = None

    def run(self, chance: random.Random) -> None:
        while waiting := [stream for stream in self.streams if stream.queue]:
            chance.shuffle(waiting)
            if not any(stream.queue[0]() and (stream.queue.pop(0), True)[1] for stream in waiting):
                raise AssertionError("the streams wait for each other")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake, fill = FakeDevice(), Place.fill
    monkeypatch.setattr(staging.torch.cuda, "Stream", fake.new_stream)
    monkeypatch.setattr(staging.torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(staging.torch.cuda, "current_stream", lambda device: fake.compute)
    monkeypatch.setattr(staging.torch.cuda, "stream", fake.stream)

    def filling(self: Place, inputs: Any, targets: torch.Tensor) -> None:
        assert fake.current is not None, "copied on the compute stream"
        fake.current.give(lambda: fill(self, inputs, targets))

    monkeypatch.setattr(Place, "fill", filling)
    return fake


def batch(number: int, size: int = 4) -> Batch:
    inputs = (torch.full((size, 2), float(number)), torch.full((size,), number > 5))
    return Batch(inputs, torch.full((size,), number), size)


@pytest.mark.parametrize("seed", range(20))
def test_every_update_reads_its_own_batch(device: FakeDevice, seed: int) -> None:
    move, read = Staging(META), []

    def update(inputs: Any, targets: torch.Tensor) -> None:
        read.append((inputs[0][0, 0].item(), targets.unique().item()))

    for number in range(12):
        inputs, targets = move(batch(number))
        for _ in range(3):  # an update is many kernels
            device.compute.give(lambda inputs=inputs, targets=targets: update(inputs, targets))
    device.run(random.Random(seed))
    assert read == [(float(number), number) for number in range(12) for _ in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_waits_for_what_had_its_memory_before(device: FakeDevice, seed: int) -> None:
    """The allocator gives memory that the compute stream still has to write to, as an earlier tensor's."""
    move, read = Staging(META), []
    for number in range(2):
        _, targets = move(batch(number))
        device.compute.give(lambda targets=targets: read.append(targets.unique().tolist()))
        # Given to the compute stream before the slot was made.
        device.compute.queue.insert(0, lambda targets=targets: (targets.fill_(9), True)[1])
    device.run(random.Random(seed))
    assert read == [[0], [1]]


def test_copies_take_no_memory_of_their_own(device: FakeDevice) -> None:
    move = Staging(META)
    addresses = {move(batch(number))[1].data_ptr() for number in range(9)}
    assert len(addresses) == NUM_SLOTS


def test_a_copy_overlaps_the_update_before(device: FakeDevice) -> None:
    """The copy stream can run dry while the first update has not begun."""
    move = Staging(META)
    move(batch(0))
    device.compute.queue.insert(-1, lambda: False)  # an update that lasts
    inputs, _ = move(batch(1))
    copying = device.streams[1].queue
    while copying and device.compute.queue[0]():
        device.compute.queue.pop(0)
    for _ in range(9):
        while copying and copying[0]():
            copying.pop(0)
        while device.compute.queue and device.compute.queue[0]():
            device.compute.queue.pop(0)
    assert not copying and inputs[0][0, 0] == 1.0


def test_another_shape_is_moved_by_itself(device: FakeDevice) -> None:
    move = Staging(META)
    move(batch(0))
    inputs, targets = move(batch(1, size=3))
    assert targets.tolist() == [1, 1, 1] and inputs[0].shape == (3, 2)
    assert not [stream for stream in device.streams[2:]]


def test_what_lies_on_the_device_stays(device: FakeDevice) -> None:
    given = batch(0)
    move = Staging(given.targets.device)
    assert move(given)[1] is given.targets
