"""Sources made of tensors: labelled images and windows of tokens. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from trainer4090.data import Source
from trainer4090.data.pipeline.hashing import draws, key
from trainer4090.data.pipeline.resident import Resident, fits

_SHIFT_STREAM, _OFFSET_STREAM = 1, 2


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Sample i is image i modulo the number of images; make it with `image_source`."""

    images: torch.Tensor
    """uint8 (images, channels, height + 2 shift, width + 2 shift), zeros around."""
    labels: torch.Tensor
    """int64 (images,), or float32 (images, labels)."""
    num_samples: int
    seed: int
    shift: int
    """Largest random shift in pixels along each side; 0 for no augmentation."""
    _cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(init=False, default_factory=dict)

    def __len__(self) -> int:
        """Number of samples."""
        return self.num_samples

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images uint8 (n, channels, height, width), randomly shifted unless epoch is -1, and labels (n, ...)."""
        rows = self._rows(indices)
        labels = self.labels.index_select(0, rows)
        if not self.shift:
            return self.images.index_select(0, rows), labels
        height, width = self.images.shape[2] - 2 * self.shift, self.images.shape[3] - 2 * self.shift
        if epoch < 0:
            inner = self.images[:, :, self.shift : self.shift + height, self.shift : self.shift + width]
            return inner.index_select(0, rows), labels
        down, right = (shifts.index_select(0, indices) for shifts in self._shifts(epoch))
        # A view (images, down, right, channels, height, width): every shift of every image without a copy.
        shifted = self.images.unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
        return shifted[rows, down, right], labels

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Labels (n, ...)."""
        return self.labels.index_select(0, self._rows(indices))

    def resident(self, device: torch.device) -> Source:
        """The same images kept on `device`, if they take at most `resident.LIMIT_MIB`."""
        if not fits(device, self.images, self.labels):
            return self
        placed = replace(self, images=self.images.to(device), labels=self.labels.to(device))
        return Resident(self, placed, device)

    def _shifts(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and columns to skip, each int64 (num_samples,); kept for one epoch, so a batch costs two look-ups."""
        if epoch not in self._cache:
            self._cache.clear()
            numbers = draws(key(self.seed, _SHIFT_STREAM, epoch), torch.arange(len(self), device=self.labels.device))
            numbers = (numbers >> 31) & (2**33 - 1)  # the remainder of a negative number would be biased
            positions = 2 * self.shift + 1
            self._cache[epoch] = numbers % positions, numbers // positions % positions
        return self._cache[epoch]

    def _rows(self, indices: torch.Tensor) -> torch.Tensor:
        return indices if self.num_samples == len(self.labels) else indices % len(self.labels)


def image_source(
    images: torch.Tensor, labels: torch.Tensor, num_samples: int | None = None, seed: int = 0, shift: int = 0
) -> ImageSource:
    """A source of `images` (uint8, (images, channels, height, width)) that repeat until `num_samples` are counted."""
    padded = functional.pad(images, (shift,) * 4) if shift else images
    return ImageSource(padded, labels, len(labels) if num_samples is None else num_samples, seed, shift)


@dataclass(frozen=True, eq=False)
class WindowSource:
    """Sample i is the window of `length` tokens at offset + i x length, the targets being one token further."""

    tokens: torch.Tensor
    """int32 (tokens,): half the memory of the int64 that leaves here."""
    length: int
    num_samples: int
    num_offsets: int
    """The offset of an epoch is drawn from [0, num_offsets)."""
    seed: int

    def __len__(self) -> int:
        """Number of samples."""
        return self.num_samples

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and next tokens, each int64 (n, length)."""
        return self._windows(self._offset(epoch), indices), self.targets(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Next tokens, int64 (n, length)."""
        return self._windows(self._offset(epoch) + 1, indices)

    def resident(self, device: torch.device) -> Source:
        """The same tokens kept on `device`, if they take at most `resident.LIMIT_MIB`."""
        if not fits(device, self.tokens):
            return self
        return Resident(self, replace(self, tokens=self.tokens.to(device)), device)

    def _offset(self, epoch: int) -> int:
        return epoch_offset(self.seed, epoch, self.num_offsets)

    def _windows(self, offset: int, indices: torch.Tensor) -> torch.Tensor:
        windows = self.tokens[offset : offset + self.num_samples * self.length].view(-1, self.length)
        return windows.index_select(0, indices).long()


@dataclass(frozen=True, eq=False)
class TensorSource:
    """Sample i is row i of `inputs` and of `targets`."""

    inputs: Any
    """Pytree of tensors (samples, ...)."""
    targets_of_all: torch.Tensor
    """(samples, ...)."""

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.targets_of_all)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        """Rows `indices`, each (n, ...)."""
        return tree_map(lambda tensor: tensor.index_select(0, indices), self.inputs), self.targets(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Targets (n, ...)."""
        return self.targets_of_all.index_select(0, indices)

    def resident(self, device: torch.device) -> Source:
        """The same tensors kept on `device`, if they take at most `resident.LIMIT_MIB`."""
        if not fits(device, *tree_leaves(self.inputs), self.targets_of_all):
            return self
        placed = TensorSource(tree_map(lambda tensor: tensor.to(device), self.inputs), self.targets_of_all.to(device))
        return Resident(self, placed, device)


def epoch_offset(seed: int, epoch: int, num_offsets: int) -> int:
    """Where the windows of an epoch begin, in [0, num_offsets); 0 for evaluation, whose epoch is -1."""
    return key(seed, _OFFSET_STREAM, epoch) % num_offsets if epoch >= 0 else 0
