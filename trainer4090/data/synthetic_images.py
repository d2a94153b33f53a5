"""Random images in the shape and number of ImageNet, for measuring speed without a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer4090.data import DATA, Data
from trainer4090.schema import Count, PositiveInt
from trainer4090.traits import DataTraits

if TYPE_CHECKING:
    from trainer4090.data.pipeline.sources import ImageSource

MEAN, DEVIATION = 127.0, 52.3
"""Of the pixels: noise uniform on 0 to 127 plus a level of the class uniform on 0 to 127."""


@dataclass(frozen=True)
class Config:
    """Fields of `data=synthetic_images`; the numbers are those of ImageNet-1k."""

    channels: PositiveInt = 3
    height: PositiveInt = 224
    width: PositiveInt = 224
    num_classes: PositiveInt = 1000
    num_train: PositiveInt = 1_281_167
    num_evaluation: PositiveInt = 50_000
    pool_size: PositiveInt = 512
    num_workers: Count = 0


def traits(config: Config) -> DataTraits:
    """What the fields say."""
    return DataTraits(
        kind="images",
        item_shape=(config.channels, config.height, config.width),
        num_classes=config.num_classes,
        num_train=config.num_train,
        num_evaluation=config.num_evaluation,
        items_per_sample=1,
        in_memory=True,
        description=f"random images, {min(config.pool_size, config.num_train):,} different ones",
    )


@DATA.register("synthetic_images", Config, traits=traits)
def synthetic_images(config: Config, seed: int) -> Data:
    """Random images with a class-dependent brightness, as many and as large as ImageNet's, from a small pool."""
    from trainer4090.data.pipeline.prepare import Normalise

    return Data(
        train=_pool(config, seed, config.num_train, stream=0),
        evaluation=_pool(config, seed, config.num_evaluation, stream=1),
        prepare=Normalise(MEAN, DEVIATION),
    )


def _pool(config: Config, seed: int, num_samples: int, stream: int) -> ImageSource:
    """A source of at most `pool_size` images; both splits share the brightness of the classes, not the noise."""
    import numpy as np
    import torch

    from trainer4090.data.pipeline.sources import image_source

    levels = np.random.default_rng(seed).integers(0, 128, (config.num_classes, config.channels, 1, 1), dtype=np.uint8)
    generator = np.random.default_rng([seed, stream])
    num_images = min(config.pool_size, num_samples)
    labels = generator.integers(0, config.num_classes, num_images)
    # Whole bytes are drawn six times faster than a narrower range.
    images = generator.integers(0, 256, (num_images, config.channels, config.height, config.width), dtype=np.uint8)
    images >>= 1
    images += levels[labels]
    return image_source(torch.from_numpy(images), torch.from_numpy(labels), num_samples)
