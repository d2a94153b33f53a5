"""What a forward saves for its backward, sent to the host meanwhile and called back a little ahead of its use."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from trainer4090.memory.host.link import Link, Mark


@dataclass(frozen=True)
class Choice:
    """Which tensors go, and how much may be on its way."""

    min_bytes: int
    fraction: float
    """Of the bytes; those that stay are spread evenly, so that the link has a pause after each tensor."""
    in_flight_bytes: int
    """Device memory of copies under way, in either direction; one copy may be larger."""


@final
class _Entry:
    """A storage that lives on the device, on the host, or on both; freed with the last tensor that autograd saved."""

    def __init__(self, forward: SavedTensors, index: int, data: torch.Tensor) -> None:
        self.forward = forward
        self.index = index
        self.num_bytes = data.numel()
        self.data: torch.Tensor | None = data
        """On the device."""
        self.buffer: torch.Tensor | None
        self.buffer, self.leaving = forward.link.out(data)
        self.coming: Mark = None
        """Of a copy back that nobody has waited for."""
        self.is_coming = False

    def leave(self) -> None:
        """Free the device's memory, which other tensors may use once the copy is made."""
        self.forward.link.wait(self.leaving)
        self.data = None

    def call(self) -> None:
        """Begin to copy back."""
        assert self.buffer is not None
        buffer, self.buffer = self.buffer, None
        self.data, self.coming = self.forward.link.back(buffer, self.num_bytes)
        self.is_coming = True
        self.forward.coming_bytes += self.num_bytes

    def arrive(self) -> None:
        """Let the device wait for the copy back."""
        if self.is_coming:
            self.forward.link.wait(self.coming)
            self.is_coming = False
            self.forward.coming_bytes -= self.num_bytes

    def __del__(self) -> None:
        # Memory that is still being written to must not be handed to anybody. One that is still being read, of an
        # entry whose tensors never left, may: what is read goes into a buffer that nobody looks at.
        self.arrive()
        if self.buffer is not None:
            self.forward.link.give(self.buffer)


@dataclass(frozen=True)
class _View:
    """One saved tensor: its place in an entry."""

    entry: _Entry
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@final
class SavedTensors:
    """The saved tensors of one forward and its backward."""

    def __init__(self, link: Link, choice: Choice, device: torch.device, staying: frozenset[int]) -> None:
        """`staying`: keys of storages that are on the device anyway, those of parameters and buffers."""
        self.link = link
        self.coming_bytes = 0
        self._choice = choice
        self._device = device
        self._staying = staying
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, _Entry | None]] = {}
        self._order: list[weakref.ref[_Entry]] = []
        self._next = -1
        """Index of the newest entry that was not called back yet."""
        self._leaving: deque[_Entry] = deque()
        self._leaving_bytes = self._seen_bytes = self._sent_bytes = 0

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Hold what autograd saves inside the block."""
        with saved_tensors_hooks(self._pack, self._unpack):
            yield
        # From here on an entry lives as long as autograd needs it. Those that did not leave yet are the first to be
        # used, and stay.
        self._known.clear()
        self._leaving.clear()
        self._next = len(self._order) - 1

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _View:
        entry = self._entry_of(tensor)
        if entry is None:
            return tensor.detach()  # the tensor itself would hold the node that saves it: a cycle
        return _View(entry, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _entry_of(self, tensor: torch.Tensor) -> _Entry | None:
        # Parameters and the tensors of other libraries are subclasses.
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device == self._device
        if not plain or tensor.is_conj() or tensor.is_neg():
            return None
        storage = tensor.untyped_storage()
        # A storage that was written to between two saves has two contents. The key is no other storage's while the
        # weak reference is there.
        key = (key_of(tensor), tensor._version)
        if key not in self._known:
            entry = self._sent(storage) if self._goes(key[0], storage.nbytes()) else None
            self._known[key] = (StorageWeakRef(storage), entry)
        return self._known[key][1]

    def _goes(self, key: int, num_bytes: int) -> bool:
        if key in self._staying or num_bytes < max(self._choice.min_bytes, 1):
            return False
        self._seen_bytes += num_bytes
        if self._sent_bytes + num_bytes > self._choice.fraction * self._seen_bytes:
            return False
        self._sent_bytes += num_bytes
        return True

    def _sent(self, storage: torch.UntypedStorage) -> _Entry:
        data = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        entry = _Entry(self, len(self._order), data)
        self._order.append(weakref.ref(entry))
        self._leaving.append(entry)
        self._leaving_bytes += entry.num_bytes
        while len(self._leaving) > 1 and self._leaving_bytes > self._choice.in_flight_bytes:
            oldest = self._leaving.popleft()
            self._leaving_bytes -= oldest.num_bytes
            oldest.leave()
        return entry

    def _unpack(self, saved: torch.Tensor | _View) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        entry = saved.entry
        if entry.data is None:
            entry.call()
        entry.arrive()
        self._call_ahead(entry.index - 1)
        assert entry.data is not None
        tensor = torch.empty(0, dtype=saved.dtype, device=self._device)
        return tensor.set_(entry.data.untyped_storage(), saved.offset, saved.size, saved.stride)

    def _call_ahead(self, newest: int) -> None:
        """Call back what backward needs next: it goes through the forward in reverse."""
        self._next = min(self._next, newest)
        while self._next >= 0 and self.coming_bytes < self._choice.in_flight_bytes:
            entry = self._order[self._next]()
            self._next -= 1
            if entry is not None and entry.data is None:
                entry.call()


def key_of(tensor: torch.Tensor) -> int:
    """A number that tensors with one storage share."""
    return tensor.untyped_storage()._cdata


def owned_by(module: torch.nn.Module) -> frozenset[int]:
    """Keys of the storages of parameters and buffers."""
    owned: list[Any] = [*module.parameters(), *module.buffers()]
    return frozenset(map(key_of, owned))
