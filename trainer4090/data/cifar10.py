"""CIFAR-10 from a local copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.cifar_files import GET, NAMES, SHAPE, CifarImages, read_cifar
from trainer4090.errors import DataError, Problem
from trainer4090.item_format import ImageFormat
from trainer4090.records import Notice
from trainer4090.schema import Count
from trainer4090.traits import DataTraits

SHIFT = 4
"""Pixels, of the usual augmentation."""


@dataclass(frozen=True)
class Config:
    """Fields of `data=cifar10`."""

    path: str = "cifar-10-batches-py"
    augment: bool = True
    num_workers: Count = 0


def traits(config: Config) -> DataTraits:
    """What the files hold."""
    content = _read(config)
    return DataTraits(
        kind="images",
        item_shape=SHAPE,
        num_classes=len(NAMES),
        num_train=len(content.train_labels),
        num_evaluation=len(content.test_labels),
        items_per_sample=1,
        in_memory=True,
        description=f"CIFAR-10 (A. Krizhevsky, 2009) from {config.path}",
        class_names=NAMES,
        notices=_notices(content),
    )


@DATA.register("cifar10", Config, traits=traits)
def cifar10(config: Config, seed: int) -> Data:
    """CIFAR-10 from your local copy, which is not downloaded: 60,000 colour images of 32x32 pixels in ten classes."""
    import torch

    from trainer4090.data.pipeline.prepare_images import Flipped, FlippingSource, channel_statistics, normalising
    from trainer4090.data.pipeline.sources import image_source

    content = _read(config)
    images, labels = torch.from_numpy(content.train_images), torch.from_numpy(content.train_labels)
    mean, deviation = channel_statistics(images)
    train = image_source(images, labels, seed=seed, shift=SHIFT if config.augment else 0)
    return Data(
        train=FlippingSource(train, seed) if config.augment else train,
        evaluation=image_source(torch.from_numpy(content.test_images), torch.from_numpy(content.test_labels)),
        prepare=Flipped(normalising(mean, deviation)),
        format=ImageFormat(
            channels=SHAPE[0],
            height=SHAPE[1],
            width=SHAPE[2],
            shorter_side=min(SHAPE[1:]),
            mean=mean,
            deviation=deviation,
            class_names=NAMES,
        ),
    )


def _read(config: Config) -> CifarImages:
    path = Path(config.path).expanduser()
    if not path.exists():
        raise DataError(Problem("data.path", f"no {config.path} here", GET))
    return read_cifar(path)


def _notices(content: CifarImages) -> tuple[Notice, ...]:
    if not content.strange:
        return ()
    got = f"other content in {', '.join(content.strange)}"
    return (Notice("data.path", "the published files", got, "their md5 differs; the results are not CIFAR-10's"),)
