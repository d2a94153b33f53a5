"""The samples of a rank: whole micro-batches of every batch, so that the cut into micro-batches is nobody's in
particular. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Slice:
    """Samples `begin` to `end` of an order of `epoch`."""

    epoch: int
    begin: int
    end: int


@dataclass(frozen=True)
class Share:
    """Every rank takes `stride` samples in turn."""

    rank: int
    size: int
    stride: int

    @property
    def _cycle(self) -> int:
        return self.stride * self.size

    def order(self, order: torch.Tensor) -> torch.Tensor:
        """The part of `order`, int64 (samples,), that is this rank's."""
        if self.size == 1:
            return order
        return order[torch.arange(len(order)) % self._cycle // self.stride == self.rank]

    def own(self, part: Slice) -> Slice:
        """This rank's part, in its own order, of a batch that begins with a cycle; it may be empty."""
        begin = part.begin // self.size
        num_own = min(max(part.end - part.begin - self.rank * self.stride, 0), self.stride)
        return Slice(part.epoch, begin, begin + num_own)
