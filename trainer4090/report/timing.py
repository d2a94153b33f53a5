"""Time and device numbers taken without waiting for the device: marked or copied now, read one log point later."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch


@dataclass(frozen=True)
class Mark:
    """A point in time: of the host's clock on a CPU, of the device's work on CUDA."""

    seconds: float
    event: torch.cuda.Event | None


def mark(device: torch.device) -> Mark:
    """A mark behind the work that was given to the device's current stream so far."""
    if device.type != "cuda":
        return Mark(time.perf_counter(), None)
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return Mark(time.perf_counter(), event)


def elapsed_ms(start: Mark, end: Mark) -> float:
    """Milliseconds from `start` to `end`, two marks of one device. Waits only if the device is not past `end` yet.

    Windows that share their marks add up to the whole: nothing is counted twice or left out.
    """
    if start.event is None or end.event is None:
        return (end.seconds - start.seconds) * 1000
    end.event.synchronize()
    return start.event.elapsed_time(end.event)


@final
class Deferred:
    """A few device scalars on their way to the host. What happens to the tensors later does not matter."""

    def __init__(self, scalars: Sequence[torch.Tensor]) -> None:
        """Packs the 0-dimensional tensors, all on one device, into one of fp64 and starts one copy to pinned memory."""
        self._event: torch.cuda.Event | None = None
        self._values: list[float] | None = None
        if all(scalar.is_cpu for scalar in scalars):
            # Nothing to wait for, and cheaper than packing.
            self._values = [float(scalar.item()) for scalar in scalars]
        else:
            packed = torch.stack([scalar.detach().to(torch.float64) for scalar in scalars])
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(packed.device))
            self._event = arrived

    def read(self) -> list[float]:
        """The values in the order given. Waits only if the copy has not arrived yet."""
        if self._values is not None:
            return self._values
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
