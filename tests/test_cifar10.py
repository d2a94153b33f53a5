"""`data=cifar10`: pickles, binary files and archives of the published layout, and nothing that a pickle could run."""

from __future__ import annotations

import os
import pickle
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer4090.__main__ import main
from trainer4090.data import DATA, cifar10
from trainer4090.data.pipeline import cifar_files
from trainer4090.data.pipeline.cifar_files import NAMES, TEST, TRAIN, CifarImages, read_cifar
from trainer4090.errors import DataError

ROWS = 20


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar_files, "IMAGES_A_FILE", ROWS)


def part(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (20, 3072) and labels of a file: noise whose brightness is the class."""
    generator = np.random.default_rng(list(name.encode()))
    labels = np.arange(ROWS) % len(NAMES)
    images = generator.integers(0, 100, (ROWS, 3072)) + 15 * labels[:, None]
    return images.astype(np.uint8), labels


def pickled(root: Path) -> Path:
    """As the authors' pickles are: byte keys, NumPy's old module, number flags of the dtype, labels a list."""
    root.mkdir(parents=True, exist_ok=True)
    for name in (*TRAIN, TEST):
        images, labels = part(name)
        content = pickle.dumps({b"data": images, b"labels": labels.tolist(), b"batch_label": b"x"}, protocol=2)
        content = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
        content = content.replace(b"\x89\x88\x87", b"K\x00K\x01\x87")  # (False, True) of the dtype become (0, 1)
        assert b"cnumpy.core.multiarray\n" in content and b"K\x00K\x01\x87" in content
        (root / name).write_bytes(content)
    return root


def binary(root: Path) -> Path:
    root.mkdir(parents=True)
    for name in (*TRAIN, TEST):
        images, labels = part(name)
        (root / f"{name}.bin").write_bytes(np.concatenate([labels[:, None].astype(np.uint8), images], axis=1).tobytes())
    return root


def archive(root: Path) -> Path:
    pickled(root / "cifar-10-batches-py")
    with tarfile.open(root / "cifar.tar.gz", "w:gz") as tar:
        tar.add(root / "cifar-10-batches-py", "cifar-10-batches-py")
    return root / "cifar.tar.gz"


def parent(root: Path) -> Path:
    return pickled(root / "cifar-10-batches-py").parent


@pytest.mark.parametrize("make", [pickled, binary, archive, parent], ids=lambda make: make.__name__)
def test_every_form_holds_the_same(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        content = read_cifar(make(tmp_path / "set"))
    assert content.train_images.shape == (100, 3, 32, 32) and content.test_images.shape == (20, 3, 32, 32)
    images, labels = part("data_batch_2")
    assert (content.train_images[20:40].reshape(20, -1) == images).all()
    assert (content.train_labels[20:40] == labels).all()
    assert (content.test_images.reshape(20, -1) == part(TEST)[0]).all()
    assert content.strange == (() if make is binary else (*TRAIN, TEST))


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("canary",)


def broken(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        (pickled(root) / name).write_bytes(content)
        return root

    return make


def without(name: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        (pickled(root) / name).unlink()
        return root

    return make


def labelled(label: int) -> bytes:
    return pickle.dumps({b"data": part(TEST)[0], b"labels": [label] * ROWS})


REFUSED = {
    "a program": (broken("test_batch", pickle.dumps(Hostile())), "test_batch: no batch of CIFAR-10 .it asks for"),
    "cut": (broken("test_batch", pickle.dumps({b"data": part(TEST)[0]})[:99]), "test_batch: no batch of CIFAR-10"),
    "no labels": (broken("test_batch", pickle.dumps({b"data": part(TEST)[0]})), "no batch of CIFAR-10 .b'labels'"),
    "other shape": (broken("test_batch", pickle.dumps({b"data": part(TEST)[0][:3], b"labels": []})), r"uint8 \(3, "),
    "a label of CIFAR-100": (broken("test_batch", labelled(10)), "labels are int64"),
    "missing": (without("data_batch_3"), "no data_batch_3 or data_batch_3.bin there; get cifar-10-python.tar.gz from"),
    "nowhere": (lambda root: root, "no such file or folder; get cifar-10-python.tar.gz from"),
    "no archive": (lambda root: root.write_bytes(b"x") and root, "no archive of CIFAR-10"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, make: Callable[[Path], Path], text: str) -> None:
    with pytest.raises(DataError, match=text):
        read_cifar(make(tmp_path / "set"))
    assert not Path("canary").exists()


def test_a_binary_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = binary(tmp_path / "set") / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="61,459 bytes, not 61,460"):
        read_cifar(tmp_path / "set")


def test_published_digests_are_torchvisions() -> None:
    from torchvision.datasets import CIFAR10

    assert dict([*CIFAR10.train_list, *CIFAR10.test_list]) == cifar_files.PUBLISHED_MD5


def test_shifts_and_flips_of_training_images_only(tmp_path: Path) -> None:
    data = DATA.get("cifar10").build(cifar10.Config(path=str(pickled(tmp_path / "set"))), 0)
    content: CifarImages = read_cifar(tmp_path / "set")
    everything = torch.arange(100)
    (images, flips), labels = data.train.fetch(everything, 0)
    assert 20 < flips.sum() < 80 and torch.equal(labels, torch.from_numpy(content.train_labels))
    assert not torch.equal(images, torch.from_numpy(content.train_images))
    assert torch.equal(data.evaluation.fetch(torch.arange(20), -1)[0], torch.from_numpy(content.test_images))
    plain = data.prepare(torch.from_numpy(content.train_images))
    assert plain.mean((0, 2, 3)).abs().max() < 1e-4 and (plain.std((0, 2, 3)) - 1).abs().max() < 1e-3
    flipped = data.prepare((torch.from_numpy(content.train_images), flips))
    assert torch.equal(flipped[flips], plain.flip(3)[flips]) and torch.equal(flipped[~flips], plain[~flips])


def test_on_a_device_it_gives_the_same_batches(tmp_path: Path) -> None:
    train = DATA.get("cifar10").build(cifar10.Config(path=str(pickled(tmp_path / "set"))), 0).train
    resident: Any = train.resident(torch.device("meta"))
    (images, flips), labels = resident.fetch(torch.arange(5), 3)
    assert images.device.type == flips.device.type == labels.device.type == "meta"
    assert torch.equal(resident.targets(torch.arange(5), 3), train.targets(torch.arange(5), 3))


def test_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pickled(tmp_path / "cifar-10-batches-py")
    words = ("data=cifar10", "model=cnn", "model.width=4", "train.batch_size=20", "train.epochs=2", "device=cpu")
    assert main(words) == 0
    assert "other content in data_batch_1" in capsys.readouterr().out
