"""Ranks: the processes that train one model together, and what they tell each other. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

Value = TypeVar("Value")
STORE_SOCKET = "TRAINER4090_STORE_SOCKET"
"""Variable of a rank that this project started: on rank 0 the number of a listening socket, "" on the others."""


@dataclass(frozen=True)
class Place:
    """Which of the processes this one is."""

    rank: int
    local_rank: int
    """Among those of this machine: number of its card."""
    size: int


FIRST = Place(rank=0, local_rank=0, size=1)


def place_in(environment: Mapping[str, str]) -> Place:
    """The place that torchrun, or the launcher of this project, gave to this process; the only one without either."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return FIRST
    rank = int(environment["RANK"])
    return Place(rank, int(environment.get("LOCAL_RANK", rank)), int(environment["WORLD_SIZE"]))


class Ranks(Protocol):
    """What the ranks of a run do together; every rank calls the same functions in the same order."""

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def mesh(self) -> DeviceMesh | None:
        """The ranks by what they share, None for a lone one."""
        ...

    def agree(self, signal_number: int) -> int:
        """A signal that any rank had got at the call before this one, 0 for none: the same on every rank."""
        ...

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor on the device by its sum over ranks."""
        ...

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Sums over ranks, in fp64."""
        ...

    def maxima(self, numbers: Sequence[float]) -> list[float]:
        """The largest of all ranks."""
        ...

    def in_order(self, value: Value | None) -> list[Value]:
        """Values of all ranks that have one, by rank; on rank 0 only, the others get none."""
        ...

    def shared(self, make: Callable[[], Value]) -> Value:
        """What `make` returns on rank 0, where alone it is called."""
        ...

    def mark(self, stage: int, slow: bool = False) -> None:
        """Show that this rank goes on: it has reached `stage` of its update (see `beats`). `slow`: it may take long."""
        ...

    def close(self) -> None:
        """Leave together, when every rank has done everything."""
        ...


@final
class Alone:
    """The only rank: there is nobody to ask or to tell."""

    rank = 0
    size = 1
    mesh = None

    def agree(self, signal_number: int) -> int:
        """The signal of this process."""
        return signal_number

    def add_up(self, tensor: torch.Tensor) -> None:
        """The tensor is the sum."""

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The numbers."""
        return list(numbers)

    def maxima(self, numbers: Sequence[float]) -> list[float]:
        """The numbers."""
        return list(numbers)

    def in_order(self, value: Any) -> list[Any]:
        """The value."""
        return [] if value is None else [value]

    def shared(self, make: Callable[[], Value]) -> Value:
        """What `make` returns."""
        return make()

    def mark(self, stage: int, slow: bool = False) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nobody waits."""


ALONE = Alone()
