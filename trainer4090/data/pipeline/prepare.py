"""Last step of the data on the device. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer4090.data import unchanged as unchanged  # tokens go to the model as they are


@dataclass(frozen=True)
class Normalise:
    """Pixels minus `mean`, over `deviation`. One number each for all channels, so no tensor has to be moved."""

    mean: float
    deviation: float

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """float32 of the shape, memory format and device of `inputs` (uint8); one pass over them."""
        offset = torch.tensor(-self.mean / self.deviation)  # 0-dim on the host: passed to the kernel by value
        return torch.add(offset, inputs, alpha=1 / self.deviation)


def normalise_like(images: torch.Tensor) -> Normalise:
    """The `Normalise` that brings `images` (uint8, host) to mean 0 and deviation 1; a constant set only to mean 0."""
    counts = torch.bincount(images.flatten(), minlength=256).double()
    pixels = torch.arange(256, dtype=torch.float64)
    mean = float((counts * pixels).sum() / counts.sum())
    variance = float((counts * (pixels - mean).square()).sum() / counts.sum())
    return Normalise(mean, variance**0.5 or 1.0)
