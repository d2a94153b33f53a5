"""Small sets of labelled images that fit in memory: the handwritten digits of UCI, or the user's own npz file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.image_file import LabelledImages, read_images
from trainer4090.data.pipeline.split import OpenFraction, stratified
from trainer4090.data.pipeline.targets import check_targets
from trainer4090.errors import DataError, Problem
from trainer4090.item_format import ImageFormat
from trainer4090.schema import Count, PositiveInt
from trainer4090.traits import DataTraits

BUILT_IN = Path(__file__).parent / "files" / "digits.npz"
"""Source and licence are in the README beside it."""


@dataclass(frozen=True)
class Config:
    """Fields of `data=digits`."""

    path: str | None = None
    limit: PositiveInt | None = None
    evaluation_fraction: OpenFraction = 0.2
    augment: bool = True
    num_workers: Count = 0


def traits(config: Config) -> DataTraits:
    """What the file holds."""
    content, train, evaluation = _load(config)
    name = config.path or "handwritten digits of UCI (Alpaydin and Kaynak, CC BY 4.0)"
    return DataTraits(
        kind="images",
        item_shape=content.images.shape[1:],
        num_classes=content.num_classes,
        num_train=len(train),
        num_evaluation=len(evaluation),
        items_per_sample=1,
        in_memory=True,
        description=f"{len(content.labels):,} images of {name}",
        class_names=tuple(map(str, range(content.num_classes))),
        multi_label=content.multi_label,
        smallest_target=0 if content.multi_label else int(content.labels[content.labels >= 0].min()),
        target_problem=partial(_target_problem, content, str(config.path or BUILT_IN.name)),
    )


def _target_problem(content: LabelledImages, key: str, ignore_index: int | None) -> Problem | None:
    if content.multi_label:
        return None  # looked at when the file was read
    try:
        check_targets(content.labels, content.num_classes, ignore_index, key)
    except DataError as error:
        return error.problems[0]
    return None


@DATA.register("digits", Config, traits=traits)
def digits(config: Config, seed: int) -> Data:
    """1,797 handwritten digits of 8x8 pixels, or the images and labels of your own npz file (data.path)."""
    import torch

    from trainer4090.data.pipeline.prepare import normalise_like
    from trainer4090.data.pipeline.sources import image_source

    content, train, evaluation = _load(config)
    images, labels = torch.from_numpy(content.images), torch.from_numpy(content.labels)
    train_images = images[train]
    prepare = normalise_like(train_images)
    channels, height, width = content.images.shape[1:]
    return Data(
        train=image_source(train_images, labels[train], seed=seed, shift=int(config.augment)),
        evaluation=image_source(images[evaluation], labels[evaluation]),
        prepare=prepare,
        format=ImageFormat(
            channels=channels,
            height=height,
            width=width,
            shorter_side=None,
            mean=(prepare.mean,),
            deviation=(prepare.deviation,),
            class_names=tuple(map(str, range(content.num_classes))),
        )
        if channels in (1, 3)
        else None,
    )


def _load(config: Config) -> tuple[LabelledImages, np.ndarray, np.ndarray]:
    """Content of the file, and the numbers of its training and evaluation samples in the order of the file."""
    path = Path(config.path) if config.path else BUILT_IN
    content = read_images(path)
    # Sets of labels are too many and too rare to give each its share: the samples are taken as one class.
    classes = np.zeros(len(content.labels)) if content.multi_label else content.labels
    chosen = stratified(classes, config.evaluation_fraction)
    train, evaluation = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    if not len(evaluation):
        given = f"{len(content.labels)} samples with data.evaluation_fraction={config.evaluation_fraction:g}"
        remedy = "no class is large enough to give one for evaluation: raise the fraction or add samples"
        raise DataError(Problem(str(path), given, remedy))
    return content, train[: config.limit], evaluation
