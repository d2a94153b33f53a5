"""Host batches copied to the device on a stream of their own, while the update before them computes."""

from __future__ import annotations

from typing import Any, final

import torch

from trainer4090.executors.places import Place
from trainer4090.executors.tensors import map_tensors, shape_of
from trainer4090.records import Batch

NUM_SLOTS = 2
"""One is read while the other is written. With more the host would only run further ahead."""


@final
class _Slot:
    """A place for a batch, and what has to have happened before it is written and before it is read."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.place = Place(batch, device)
        self.arrived = torch.cuda.Event()
        self.free = torch.cuda.Event()
        # The allocator hands out memory in the order of the stream that asks, which may not be done yet with what lay
        # there before. The stream that copies has to be told.
        self.free.record(torch.cuda.current_stream(device))


@final
class Staging:
    """Moves pinned batches on a copy stream into two slots in turn, so that no copy takes memory of its own.

    The host runs ahead of the device: when it asks for a batch the update before is still being computed, and the copy
    goes on beside it. The device alone waits, by events. A batch holds until the next call but one.
    """

    def __init__(self, device: torch.device) -> None:
        """The slots get the shape of the first batch; others, as an epoch's last, are copied by the compute stream."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._slots: list[_Slot] = []
        self._shape: Any = None
        self._num_batches = 0

    def __call__(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """(inputs as the data gives them, targets) on the device; what lies there already stays where it is."""
        if batch.targets.device == self._device:
            return batch.inputs, batch.targets
        if self._shape is None:
            self._shape = shape_of(batch)
            self._slots = [_Slot(batch, self._device) for _ in range(NUM_SLOTS)]
        if shape_of(batch) != self._shape:
            moved = map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), batch.inputs)
            return moved, batch.targets.to(self._device, non_blocking=True)
        compute = torch.cuda.current_stream(self._device)
        # All that reads the slot of the batch before was given to the device by now.
        self._slots[(self._num_batches - 1) % NUM_SLOTS].free.record(compute)
        slot = self._slots[self._num_batches % NUM_SLOTS]
        self._num_batches += 1
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(slot.free)
            slot.place.fill(batch.inputs, batch.targets)
            slot.arrived.record(self._stream)
        compute.wait_event(slot.arrived)
        return slot.place.inputs, slot.place.targets
