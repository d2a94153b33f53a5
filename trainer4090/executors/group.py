"""The process group of the ranks of a run: what `Ranks` asks for, by torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, final

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from trainer4090.beats import ENDS, WAITS_FOR_DATA, Beats
from trainer4090.ranks import STORE_SOCKET, Place

Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=10)
"""Of an exchange: longer than a save or an evaluation. Who hangs is found sooner, by `beats`."""


def open_store(place: Place) -> Store:
    """Where the ranks find each other: at MASTER_ADDR and MASTER_PORT, as torchrun has it.

    The socket of ranks that this project started is open already, so no other process can have taken its port.
    """
    listening = os.environ.get(STORE_SOCKET)
    if listening is None:
        store, _, _ = next(rendezvous("env://", place.rank, place.size, timeout=TIMEOUT))
        return store
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    number = int(listening) if listening else None
    return TCPStore(host, port, place.size, place.rank == 0, TIMEOUT, master_listen_fd=number)


def open_group(place: Place, store: Store, device: torch.device, beats: Beats | None) -> Group:
    """The opened group; gloo between CPUs, NCCL between GPUs.

    Raises:
        RuntimeError: a rank does not answer.
    """
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.size,
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    return Group(place, device, beats)


@final
class Group:
    """The ranks of this run; small numbers of the host go over gloo, tensors over the device's own links."""

    def __init__(self, place: Place, device: torch.device, beats: Beats | None) -> None:
        """The default process group is open. `beats`: where to show how far this rank is."""
        self.rank, self.size = place.rank, place.size
        self.mesh: DeviceMesh = init_device_mesh(device.type, (place.size,), mesh_dim_names=("data",))
        self._host: Any = distributed.new_group(backend="gloo", timeout=TIMEOUT)
        self._beats = beats
        self._update = 0
        self._asked: tuple[Any, torch.Tensor] | None = None

    def agree(self, signal_number: int) -> int:
        """A signal that any rank had got at the call before this one: its answer has arrived meanwhile."""
        agreed = self._answer()
        asked = torch.tensor([signal_number])
        work = distributed.all_reduce(asked, distributed.ReduceOp.MAX, group=self._host, async_op=True)
        self._asked = (work, asked)
        self._update += 1
        self.mark(WAITS_FOR_DATA, slow=self._update == 1)  # workers start, files are opened
        return agreed

    def _answer(self) -> int:
        if self._asked is None:
            return 0
        work, asked = self._asked
        work.wait()
        return int(asked)

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor on the device by its sum over ranks; the host does not wait for a GPU."""
        distributed.all_reduce(tensor, group=self.mesh.get_group("data"))

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Sums over ranks, in fp64."""
        return self._reduced(numbers, distributed.ReduceOp.SUM)

    def maxima(self, numbers: Sequence[float]) -> list[float]:
        """The largest of all ranks."""
        return self._reduced(numbers, distributed.ReduceOp.MAX)

    def _reduced(self, numbers: Sequence[float], operation: Any) -> list[float]:
        tensor = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(tensor, operation, group=self._host)
        return tensor.tolist()

    def in_order(self, value: Value | None) -> list[Value]:
        """Values of all ranks that have one, by rank; on rank 0 only, the others get none."""
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        distributed.gather_object(value, found, group=self._host, group_dst=0)
        return [each for each in found or () if each is not None]

    def shared(self, make: Callable[[], Value]) -> Value:
        """What `make` returns on rank 0, where alone it is called."""
        values: list[Any] = [make() if self.rank == 0 else None]
        distributed.broadcast_object_list(values, group=self._host, group_src=0)
        return values[0]

    def mark(self, stage: int, slow: bool = False) -> None:
        """Show that this rank goes on; each call of `agree` begins an update."""
        if self._beats is not None:
            self._beats.mark(self.rank, self._update, stage, slow)

    def close(self) -> None:
        """Leave together, when every rank has done everything."""
        self._answer()
        self.mark(ENDS, slow=True)
        distributed.barrier(group=self._host)
        distributed.destroy_process_group()
