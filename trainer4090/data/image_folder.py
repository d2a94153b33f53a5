"""Your own images, in a folder for every class."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.image_splits import Splits, split_folder
from trainer4090.data.pipeline.split import OpenFraction
from trainer4090.errors import ConfigError, Problem
from trainer4090.item_format import ImageFormat
from trainer4090.schema import Auto, Count, PositiveFloat, PositiveInt, Range
from trainer4090.traits import DataTraits

Pixel = Annotated[float, Range(low=0, high=255)]
CropFraction = Annotated[float, Range(low=0, high=1, above_low=True)]

MEAN = {3: (123.675, 116.28, 103.53), 1: (117.0,)}
"""Of ImageNet's pixels, which pretrained weights of torchvision and timm expect; grey is weighted as in luma."""
DEVIATION = {3: (58.395, 57.12, 57.375), 1: (57.5,)}
SHORTER_SIDE_OVER_SIZE = 256 / 224
"""Of the usual evaluation on ImageNet."""
LONGEST_LISTING = 12


@dataclass(frozen=True)
class Config:
    """Fields of `data=image_folder`."""

    path: str | None = None
    val_folder: str = "auto"
    val_fraction: OpenFraction = 0.2
    size: PositiveInt | tuple[PositiveInt, PositiveInt] = 224
    shorter_side: Auto | PositiveInt | None = "auto"
    channels: Literal[3, 1] = 3
    mean: Auto | Pixel | tuple[Pixel, ...] = "auto"
    deviation: Auto | PositiveFloat | tuple[PositiveFloat, ...] = "auto"
    augment: bool = True
    smallest_crop: CropFraction = 0.08
    flip: bool = True
    on_error: Literal["fail", "skip"] = "fail"
    max_errors: Count = 10
    num_workers: Auto | Count = "auto"


def traits(config: Config) -> DataTraits:
    """What the folders hold; no image is opened.

    Raises:
        ConfigError: fields contradict each other.
        DataError: the folders are missing, empty, or do not belong together.
    """
    splits = _splits(config)
    height, width = _size(config)
    return DataTraits(
        kind="images",
        item_shape=(config.channels, height, width),
        num_classes=len(splits.class_names),
        num_train=len(splits.train.names),
        num_evaluation=len(splits.evaluation.names),
        items_per_sample=1,
        in_memory=False,
        description=_description(config, splits),
        class_names=splits.class_names,
        notices=splits.notices,
        fingerprint=splits.train.fingerprint(),
    )


@DATA.register("image_folder", Config, traits=traits)
def image_folder(config: Config, seed: int) -> Data:
    """Your own images in a folder for every class: data.path with train/ and val/, or with the classes alone."""
    from trainer4090.data.pipeline.file_source import file_source, unreadable_since
    from trainer4090.data.pipeline.prepare_images import Flipped, FlippingSource, normalising

    splits = _splits(config)
    item_format = _format(config, splits.class_names)
    max_errors = config.max_errors if config.on_error == "skip" else None
    smallest_crop = config.smallest_crop if config.augment and config.smallest_crop < 1 else None
    train = file_source(splits.train, item_format, seed, smallest_crop, max_errors)
    evaluation = file_source(splits.evaluation, item_format, seed, None, max_errors)
    return Data(
        train=FlippingSource(train, seed) if config.augment and config.flip else train,
        evaluation=evaluation,
        prepare=Flipped(normalising(item_format.mean, item_format.deviation)),
        format=item_format,
        notices=unreadable_since((train, evaluation)),
    )


def _splits(config: Config) -> Splits:
    problems = _problems(config)
    if config.path is None or problems:
        raise ConfigError(*problems)
    path = os.path.abspath(os.path.expanduser(config.path))
    return split_folder(os.fsencode(path), config.val_folder, config.val_fraction)


def _problems(config: Config) -> list[Problem]:
    problems = []
    if config.path is None:
        remedy = "give the folder that holds train/<class>/ and val/<class>/, or a folder for every class"
        problems.append(Problem("data.path", "null", remedy))
    for name in ("mean", "deviation"):
        values = getattr(config, name)
        if isinstance(values, tuple) and len(values) not in (1, config.channels):
            given = f"{len(values)} numbers with data.channels={config.channels}"
            problems.append(Problem(f"data.{name}", given, "give one number, or one for each channel"))
    shortest = min(_size(config))
    if isinstance(config.shorter_side, int) and config.shorter_side < shortest:
        given = f"{config.shorter_side} is less than data.size={shortest}, which is cropped from it"
        problems.append(Problem("data.shorter_side", given, f"give at least {shortest}, auto, or null to stretch"))
    return problems


def _size(config: Config) -> tuple[int, int]:
    """Height and width of a sample."""
    return config.size if isinstance(config.size, tuple) else (config.size, config.size)


def _format(config: Config, class_names: tuple[str, ...]) -> ImageFormat:
    height, width = _size(config)
    shorter_side = config.shorter_side
    if shorter_side == "auto":
        shorter_side = round(min(height, width) * SHORTER_SIDE_OVER_SIZE)
    return ImageFormat(
        channels=config.channels,
        height=height,
        width=width,
        shorter_side=shorter_side,
        mean=_numbers(config.mean, MEAN[config.channels]),
        deviation=_numbers(config.deviation, DEVIATION[config.channels]),
        class_names=class_names,
    )


def _numbers(given: str | float | tuple[float, ...], default: tuple[float, ...]) -> tuple[float, ...]:
    if isinstance(given, tuple):
        return given
    return default if isinstance(given, str) else (given,)


def _description(config: Config, splits: Splits) -> str:
    counts = splits.train.counts(len(splits.class_names))
    pairs = [f"{name} {count:,}" for name, count in zip(splits.class_names, counts, strict=True)]
    listing = ", ".join(pairs[:LONGEST_LISTING])
    rest = f" and {len(pairs) - LONGEST_LISTING} more" if len(pairs) > LONGEST_LISTING else ""
    return f"{listing}{rest}; from {config.path}, held out: {splits.held_out}"
