"""Samples of a map-style dataset of torch's kind. Imports torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from trainer4090.data import Source
from trainer4090.data.pipeline.hashing import key
from trainer4090.random_state import kept

_TRANSFORM_STREAM = 4


@dataclass(frozen=True, eq=False)
class DatasetSource:
    """Sample i is `dataset[i]`, its input and its target."""

    dataset: Any
    targets_of_all: torch.Tensor
    """(samples, ...)."""
    seed: int

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.targets_of_all)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        """Collated inputs and the targets, each (n, ...). Generators are as before when it returns."""
        with kept():
            inputs = default_collate([self._input(index, epoch) for index in indices.tolist()])
        return inputs, self.targets(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Targets (n, ...), without decoding a sample."""
        return self.targets_of_all.index_select(0, indices)

    def resident(self, device: torch.device) -> Source:
        """Itself: samples are decoded on the host."""
        return self

    def _input(self, index: int, epoch: int) -> Any:
        drawn = key(self.seed, _TRANSFORM_STREAM, epoch, index)
        torch.default_generator.manual_seed(drawn)  # torch.manual_seed would move the device's dropout too
        random.seed(drawn)
        np.random.seed(drawn % 2**32)
        return self.dataset[index][0]
