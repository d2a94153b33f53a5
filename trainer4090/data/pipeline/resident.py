"""Sources that lie on the device, so that a batch costs no transfer. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainer4090.data import Source

LIMIT_MIB = 512
"""Larger sources stay on the host: 2 % of a 4090's memory, and a copy that small is made in 0.1 s over PCIe."""


@dataclass(frozen=True, eq=False)
class Resident:
    """A source on `device` beside its copy on the host, whose targets are counted without synchronising."""

    host: Source
    placed: Source
    """The same samples as tensors on `device`; it takes `indices` there."""
    device: torch.device

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.host)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        """As `Source.fetch`, leaving the samples on `device`; the loader spares even the transfer of `indices`."""
        return self.placed.fetch(indices.to(self.device), epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """As `Source.targets`, read from the host's copy."""
        return self.host.targets(indices, epoch)

    def resident(self, device: torch.device) -> Source:
        """Itself: it is placed already."""
        return self


def fits(device: torch.device, *tensors: torch.Tensor) -> bool:
    """Whether the tensors are small enough to be kept on `device`; on the host nothing is gained."""
    return device.type != "cpu" and sum(tensor.nbytes for tensor in tensors) <= LIMIT_MIB * 2**20
