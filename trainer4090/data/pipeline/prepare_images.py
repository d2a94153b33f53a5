"""Flips and per-channel normalisation in batch on the device, and the source that decides the flips. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from trainer4090.data import Prepare, Source
from trainer4090.data.pipeline.hashing import draws, key
from trainer4090.data.pipeline.prepare import Normalise
from trainer4090.data.pipeline.resident import Resident

_FLIP_STREAM = 6


@dataclass(frozen=True, eq=False)
class NormaliseChannels:
    """Pixels minus `mean`, over `deviation`, one number a channel each."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    _placed: dict[Any, tuple[torch.Tensor, torch.Tensor]] = field(init=False, default_factory=dict)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """float32 of the shape, memory format and device of `inputs` (uint8); one pass over them."""
        offset, scale = self._beside(inputs)
        return torch.addcmul(offset, inputs, scale)

    def _beside(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Offset and scale on the device of `inputs`, moved there once, so that no later call synchronises."""
        # The type belongs to the key because a tensor made under FakeTensorMode is fake and must not be met later.
        place = (type(inputs), inputs.device)
        if place not in self._placed:
            mean = torch.tensor(self.mean, dtype=torch.float64).reshape(-1, 1, 1)
            deviation = torch.tensor(self.deviation, dtype=torch.float64).reshape(-1, 1, 1)
            terms = (-mean / deviation, 1 / deviation)
            offset, scale = (term.float().to(inputs.device) for term in terms)
            self._placed[place] = offset, scale
        return self._placed[place]


def normalising(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Prepare:
    """The normalisation with one number a channel each, or one for all."""
    if len({*mean}) == 1 and len({*deviation}) == 1:
        return Normalise(mean[0], deviation[0])
    size = max(len(mean), len(deviation))
    return NormaliseChannels(*(values * (size // len(values)) for values in (mean, deviation)))


def channel_statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of `images` (uint8 (n, channels, height, width), host)."""
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in images.unbind(1):
        shares = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = float((shares * values).sum())
        means.append(mean)
        deviations.append(float((shares * (values - mean).square()).sum()) ** 0.5 or 1.0)
    return tuple(means), tuple(deviations)


@dataclass(frozen=True)
class Flipped:
    """Flips the images that are to be flipped, then goes on with `then`."""

    then: Prepare

    def __call__(self, inputs: Any) -> Any:
        """`inputs`: images (n, channels, height, width), or the pair of these and flips, bool (n,)."""
        if isinstance(inputs, torch.Tensor):
            return self.then(inputs)
        images, flips = inputs
        return self.then(torch.where(flips[:, None, None, None], images.flip(3), images))


@dataclass(frozen=True, eq=False)
class FlippingSource:
    """The samples of `source`, beside each whether it is to be flipped left to right; `Flipped` does it."""

    source: Source
    seed: int

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.source)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        """((images, flips bool (n,)), targets); images alone when epoch is -1."""
        images, targets = self.source.fetch(indices, epoch)
        if epoch < 0:
            return images, targets
        # The sign bit: a fair coin that is a function of (seed, epoch, sample).
        return (images, draws(key(self.seed, _FLIP_STREAM, epoch), indices) < 0), targets

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """As the source's."""
        return self.source.targets(indices, epoch)

    def resident(self, device: torch.device) -> Source:
        """The same with the source kept on `device`, if it can be."""
        resident = self.source.resident(device)
        if not isinstance(resident, Resident):
            return self
        return Resident(self, replace(self, source=resident.placed), device)
