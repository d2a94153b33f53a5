"""Images and labels in an npz file, validated. Imports no torch."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer4090.data.pipeline.targets import check_targets
from trainer4090.errors import DataError, Problem

FORMAT = "it holds `images`, uint8 (samples, height, width) or (samples, channels, height, width), and `labels`"
LABELS = "labels are classes (samples,), or 0 and 1 (samples, labels) where a sample has several or none"


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Content of a file: `images` uint8 (samples, channels, height, width), `labels` int64 (samples,).

    Labels lie in [0, num_classes), or are negative: whether one of these means "no class" only the loss knows. With
    several labels a sample they are float32 (samples, num_classes), 0 or 1.
    """

    images: np.ndarray
    labels: np.ndarray
    num_classes: int

    @property
    def multi_label(self) -> bool:
        """Whether a sample has several labels, or none."""
        return self.labels.ndim == 2


def read_images(path: Path) -> LabelledImages:
    """The images and labels of the npz file `path`; the number of classes is the largest label + 1, or their columns.

    Raises:
        DataError: the file is missing, damaged, of another format, or its labels are no classes.
    """
    images, labels = _arrays(path)
    problem = _shape_problem(images, labels)
    if problem:
        raise DataError(Problem(str(path), problem, f"{FORMAT}; {LABELS}" if "labels" in problem else FORMAT))
    planes = images[:, None] if images.ndim == 3 else images
    if labels.ndim == 2:
        return LabelledImages(planes, _indicators(labels, path), labels.shape[1])
    num_classes = int(labels.max()) + 1
    if num_classes < 1:
        check_targets(labels, 1, None, str(path))
    classes = labels[labels >= 0]
    if num_classes > len(labels):
        given = f"sample {int(labels.argmax())} has label {num_classes - 1} among {len(labels)} samples"
        raise DataError(Problem(str(path), given, "number the classes from 0 without gaps"))
    if (classes == classes[0]).all():
        given = f"all {len(classes)} labels are {int(classes[0])}"
        raise DataError(Problem(str(path), given, "one class teaches nothing: add samples of a second one"))
    return LabelledImages(planes, labels.astype(np.int64), num_classes)


def _indicators(labels: np.ndarray, path: Path) -> np.ndarray:
    """`labels` (samples, labels) as float32.

    Raises:
        DataError: a value is neither 0 nor 1, or no label is ever there.
    """
    wrong = np.argwhere((labels != 0) & (labels != 1))
    if len(wrong):
        sample, label = map(int, wrong[0])
        given = f"sample {sample} has {labels[sample, label]} for label {label}"
        raise DataError(Problem(str(path), given, LABELS))
    if not labels.any():
        raise DataError(Problem(str(path), "all labels are 0", "no label teaches nothing: add samples that have one"))
    return labels.astype(np.float32)


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            # Without pickle a file can hold numbers only; the zip container checks their CRC.
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise DataError(Problem(str(path), "a single array", FORMAT))
            return content["images"], content["labels"]
    except FileNotFoundError as error:
        raise DataError(Problem(str(path), "no such file", f"give data.path an npz file; {FORMAT}")) from error
    except KeyError as error:
        raise DataError(Problem(str(path), str(error.args[0]), FORMAT)) from error
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        given = f"unreadable ({' '.join(str(error).split())})"
        raise DataError(Problem(str(path), given, f"give an undamaged npz file; {FORMAT}")) from error


def _shape_problem(images: np.ndarray, labels: np.ndarray) -> str | None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        return f"images are {images.dtype} {images.shape}"
    kinds = "iu" if labels.ndim == 1 else "iufb"
    if labels.dtype.kind not in kinds or labels.ndim not in (1, 2) or len(labels) != len(images) or not labels.size:
        return f"labels are {labels.dtype} {labels.shape} for {len(images)} images"
    return None
