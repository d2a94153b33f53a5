"""Copies between a device and the memory of the host, in the order in which they are asked for."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, Protocol, final

import torch

Mark = Any
"""What to wait for; None for a copy that is already done."""


class Link(Protocol):
    """One queue of copies. Bytes are flat tensors of uint8."""

    def out(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        """A buffer on the host that `data`, which is on the device, is being copied to."""
        ...

    def back(self, buffer: torch.Tensor, num_bytes: int) -> tuple[torch.Tensor, Mark]:
        """Device memory that the first bytes of `buffer` are being copied to; the buffer belongs to the link again."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let what the device does from now on come after that copy."""
        ...

    def give(self, buffer: torch.Tensor) -> None:
        """Take back a buffer whose content nobody needs."""
        ...


@final
class Pool:
    """Buffers of the host that are used again: pinning memory takes longer than copying it."""

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        """`allocate`: number of bytes -> flat tensor of uint8."""
        self._allocate = allocate
        self._free: list[torch.Tensor] = []

    def take(self, num_bytes: int) -> torch.Tensor:
        """The smallest free buffer with room for so many bytes, or a new one: a smaller tail needs none of its own."""
        index = bisect.bisect_left(self._free, num_bytes, key=torch.numel)
        return self._free.pop(index) if index < len(self._free) else self._allocate(num_bytes)

    def give(self, buffer: torch.Tensor) -> None:
        """Keep a buffer for the next who needs one."""
        bisect.insort(self._free, buffer, key=torch.numel)


@final
class HostLink:
    """The same copies where the device is the host itself: done at once."""

    def __init__(self) -> None:
        self._pool = Pool(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))
        self.give = self._pool.give

    def out(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        """A copy of `data`."""
        buffer = self._pool.take(data.numel())
        buffer[: data.numel()].copy_(data)
        return buffer, None

    def back(self, buffer: torch.Tensor, num_bytes: int) -> tuple[torch.Tensor, Mark]:
        """A copy of the buffer's first bytes."""
        data = buffer[:num_bytes].clone()
        self._pool.give(buffer)
        return data, None

    def wait(self, mark: Mark) -> None:
        """Nothing is on its way."""


@final
class StreamLink:
    """Pinned memory and a stream of its own, so that copies run beside computation and the host waits for none.

    Device memory on both ends belongs to the computing stream, which waits for a copy before the memory is used again:
    the allocator then hands it out in the order of that stream and needs to know nothing of ours. (`record_stream`
    would free it only when the host next sees the copy done, and the host is far ahead.) A buffer of the host needs no
    waiting at all: only this stream touches it, and a stream keeps its order.
    """

    def __init__(self, device: torch.device) -> None:
        """`device`: a GPU."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = Pool(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True))
        self.give = self._pool.give

    def out(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        """A pinned buffer; the caller holds `data` until the computing stream has waited."""
        buffer = self._pool.take(data.numel())
        return buffer, self._copy(buffer[: data.numel()], data)

    def back(self, buffer: torch.Tensor, num_bytes: int) -> tuple[torch.Tensor, Mark]:
        """Fresh device memory; the copy starts when the device is done with what had that memory before."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        mark = self._copy(data, buffer[:num_bytes])
        self._pool.give(buffer)
        return data, mark

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def wait(self, mark: Mark) -> None:
        """Make the computing stream wait, not the host."""
        torch.cuda.current_stream(self._device).wait_event(mark)
