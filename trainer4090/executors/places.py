"""Tensors on the device that one batch after another is copied into."""

from __future__ import annotations

from typing import Any, final

import torch

from trainer4090.executors.tensors import map_tensors, tensors_of
from trainer4090.records import Batch


@final
class Place:
    """Inputs and targets of one shape, at fixed addresses on the device."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        """Uninitialised tensors of the shapes, dtypes and memory formats of `batch`."""
        self.inputs = map_tensors(lambda tensor: torch.empty_like(tensor, device=device), batch.inputs)
        self.targets = torch.empty_like(batch.targets, device=device)
        self._tensors = (*tensors_of(self.inputs), self.targets)

    def fill(self, inputs: Any, targets: torch.Tensor) -> None:
        """Copy a batch in, on the current stream; tensors in pinned host memory are not waited for."""
        for place, tensor in zip(self._tensors, (*tensors_of(inputs), targets), strict=True):
            place.copy_(tensor, non_blocking=True)
