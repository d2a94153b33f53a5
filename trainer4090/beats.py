"""How far every rank has come, in memory that the process which started them can see. Imports no torch.

A rank that hangs says nothing, and the others wait for it, so who hangs is found by comparing how far they are.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import final

WAITS_FOR_DATA, COMPUTES = 0, 1
"""The first stages of an update; each further micro-batch is one more."""
EXCHANGES, EVALUATES, SAVES, ENDS = (2**19 + number for number in range(4))
"""The last ones. Who exchanges may have to wait for the others."""
_STAGES = 2**20
_WORDS, _BYTES = 2, 8
"""Of a rank: its progress, and the number of its marks with the lowest bit set while something slow is done."""


@dataclass(frozen=True)
class Beat:
    """What a rank showed last."""

    progress: int
    """Grows with updates and their stages; ranks of one run can be compared by it."""
    num_marks: int
    slow: bool

    @property
    def update(self) -> int:
        """Number of the update that it is at, from 1."""
        return self.progress // _STAGES


def create(path: Path, num_ranks: int) -> None:
    """Write the file that the ranks of a run share."""
    path.write_bytes(bytes(num_ranks * _WORDS * _BYTES))


@final
class Beats:
    """The shared memory of all ranks."""

    def __init__(self, path: Path) -> None:
        """Maps the file that `create` has written."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._map).cast("q")

    def mark(self, rank: int, update: int, stage: int, slow: bool) -> None:
        """Let the others see that `rank` has reached a stage of an update."""
        at = rank * _WORDS
        self._words[at] = update * _STAGES + stage
        self._words[at + 1] = (self._words[at + 1] // 2 + 1) * 2 + slow

    def read(self, rank: int) -> Beat:
        """What `rank` showed last."""
        progress, marks = self._words[rank * _WORDS : (rank + 1) * _WORDS]
        return Beat(progress, marks // 2, bool(marks % 2))

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
