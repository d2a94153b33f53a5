"""Files of images, their labels and their split: what is wrong is named, never trained on."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer4090.data import digits
from trainer4090.data.pipeline.image_file import read_images
from trainer4090.data.pipeline.split import stratified
from trainer4090.data.pipeline.targets import check_targets
from trainer4090.errors import DataError


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def save(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


IMAGES, LABELS = np.zeros((6, 4, 4), dtype=np.uint8), np.array([0, 1, 2, 0, 1, 2])
BAD_FILES = [
    pytest.param(lambda path: None, "no such file; give data.path", id="missing"),
    pytest.param(lambda path: path.write_bytes(b""), "unreadable", id="empty"),
    pytest.param(lambda path: path.write_bytes(b"\x80junk" * 50), "unreadable", id="garbage"),
    pytest.param(lambda path: path.mkdir(), "unreadable", id="folder"),
    pytest.param(lambda path: path.write_bytes(digits.BUILT_IN.read_bytes()[:30_000]), "unreadable", id="truncated"),
    pytest.param(lambda path: path.write_bytes(npy(IMAGES)), "a single array", id="npy"),
    pytest.param(save(images=IMAGES), "labels is not a file in the archive", id="no labels"),
    pytest.param(save(images=np.array([{}]), labels=LABELS), "unreadable", id="pickled objects"),
    pytest.param(save(images=IMAGES / 2, labels=LABELS), r"images are float64 \(6, 4, 4\)", id="float images"),
    pytest.param(save(images=IMAGES[:0], labels=LABELS[:0]), r"images are uint8 \(0, 4, 4\)", id="no samples"),
    pytest.param(save(images=IMAGES, labels=LABELS[:5]), r"labels are int64 \(5,\) for 6 images", id="lengths"),
    pytest.param(save(images=IMAGES, labels=LABELS / 1), "labels are float64", id="float labels"),
    pytest.param(save(images=IMAGES, labels=LABELS * 0 - 1), r"sample 0 has target -1; .*\[0, 1\)", id="all negative"),
    pytest.param(save(images=IMAGES, labels=LABELS + 5), "sample 2 has label 7 among 6 samples", id="gaps"),
    pytest.param(save(images=IMAGES, labels=LABELS * 0 + 1), "all 6 labels are 1; one class", id="one class"),
    pytest.param(save(images=IMAGES, labels=LABELS[:5, None]), r"labels are int64 \(5, 1\) for 6", id="rows"),
    pytest.param(save(images=IMAGES, labels=LABELS[:, None, None]), r"labels are int64 \(6, 1, 1\)", id="cube"),
    pytest.param(save(images=IMAGES, labels=np.zeros((6, 0))), r"labels are float64 \(6, 0\)", id="no columns"),
    pytest.param(save(images=IMAGES, labels=LABELS[:, None]), "sample 2 has 2 for label 0; labels are", id="counts"),
    pytest.param(save(images=IMAGES, labels=np.eye(6) / 2), "sample 0 has 0.5 for label 0", id="halves"),
    pytest.param(save(images=IMAGES, labels=np.eye(6) * 0), "all labels are 0; no label", id="no labels there"),
    pytest.param(save(images=IMAGES, labels=np.eye(6) * np.nan), "sample 0 has nan for label 0", id="no numbers"),
    pytest.param(save(images=IMAGES, labels=LABELS), "6 samples with data.evaluation_fraction=0.2", id="too few"),
]


@pytest.mark.parametrize(("write", "message"), BAD_FILES)
def test_bad_image_files(tmp_path: Path, write: Callable[[Path], object], message: str):
    path = tmp_path / "mine.npz"
    write(path)
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        digits.traits(digits.Config(path=str(path)))


def test_damaged_image_files_never_pass(tmp_path: Path):
    """A flipped bit is found by a checksum, or lies where it changes no number."""
    path, whole = tmp_path / "mine.npz", digits.BUILT_IN.read_bytes()
    intact, found = read_images(digits.BUILT_IN), 0
    for place in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            damaged = read_images(path)
        except DataError:
            found += 1
            continue
        assert np.array_equal(intact.images, damaged.images)
        assert np.array_equal(intact.labels, damaged.labels)
    assert found > 50


def test_own_images(tmp_path: Path):
    path = tmp_path / "mine.npz"
    np.savez(path, images=np.arange(20 * 3 * 4 * 5, dtype=np.uint8).reshape(20, 3, 4, 5), labels=np.arange(20) % 2)
    stated = digits.traits(digits.Config(path=str(path)))
    assert (stated.item_shape, stated.num_classes, stated.num_train, stated.num_evaluation) == ((3, 4, 5), 2, 16, 4)


CHECKS = [
    pytest.param([0, 4, 2], None, 0, id="in range"),
    pytest.param([0, -100, 2, -100], -100, 2, id="ignored are counted"),
    pytest.param([[0, 1], [255, 2]], 255, 1, id="tokens"),
    pytest.param([1, 2, 3, 4, 5], -100, r"sample 4 has target 5; .*\[0, 5\); they seem to start at 1", id="from one"),
    pytest.param([0, 2, -1], -100, r"sample 2 has target -1; .*\[0, 5\); drop .* loss.ignore_index", id="unknown"),
    pytest.param([[0, 1], [9, 2]], None, r"sample 1 has target 9; .*model.num_classes=10", id="too large"),
]


@pytest.mark.parametrize(("targets", "ignore_index", "expected"), CHECKS)
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["array", "tensor"])
def test_check_targets(make: Callable[..., Any], targets: Any, ignore_index: int | None, expected: int | str):
    if isinstance(expected, int):
        assert check_targets(make(targets), 5, ignore_index, "data") == expected
        return
    with pytest.raises(DataError, match=f"^data: {expected}"):
        check_targets(make(targets), 5, ignore_index, "data")


@pytest.mark.parametrize(
    ("labels", "fraction", "chosen"),
    [
        pytest.param([0, 0, 0, 0], 0.5, [0, 1, 0, 1], id="every second"),
        pytest.param([1, 1, 1, 0, 0, 0], 0.34, [0, 0, 1, 0, 0, 1], id="of each class"),
        pytest.param([0, 1, 2], 0.9, [0, 0, 0], id="classes of one sample"),
    ],
)
def test_stratified(labels: list[int], fraction: float, chosen: list[int]):
    assert stratified(np.array(labels), fraction).tolist() == [bool(value) for value in chosen]
