"""The files of CIFAR-10 as its authors publish them: pickles or binary, in a folder or a tar archive. Imports no torch.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer4090.errors import DataError, Problem

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
IMAGES_A_FILE = 10_000
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
PUBLISHED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""Of the pickles."""
_SUBFOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")
_LABEL_BYTES = 1
GET = "get cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, and give its path or its folder's"


@dataclass(frozen=True, eq=False)
class CifarImages:
    """Both splits: images uint8 (n, 3, 32, 32) and labels int64 (n,)."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    strange: tuple[str, ...]
    """Pickles whose md5 is not the published one."""


def read_cifar(path: Path) -> CifarImages:
    """The images below the folder `path`, or in the archive `path`.

    Raises:
        DataError: a file is missing, damaged, or not of CIFAR-10.
    """
    read = _archive(path) if path.is_file() else _folder(path)
    parts, strange = [], []
    for name in (*TRAIN, TEST):
        where, content = read(name)
        pickled = not where.endswith(".bin")
        parts.append(_unpickled(where, content) if pickled else _binary(where, content))
        if pickled and hashlib.md5(content, usedforsecurity=False).hexdigest() != PUBLISHED_MD5[name]:
            strange.append(name)
    images, labels = zip(*parts, strict=True)
    return CifarImages(np.concatenate(images[:-1]), np.concatenate(labels[:-1]), images[-1], labels[-1], tuple(strange))


Read = Callable[[str], tuple[str, bytes]]
"""Name of a part -> where it was found and its content."""


def _folder(path: Path) -> Read:
    def read(name: str) -> tuple[str, bytes]:
        for candidate in (path / folder / f"{name}{suffix}" for folder in _SUBFOLDERS for suffix in ("", ".bin")):
            if candidate.is_file():
                try:
                    return str(candidate), candidate.read_bytes()
                except OSError as error:
                    given = f"cannot be read ({error.strerror})"
                    raise DataError(Problem(str(candidate), given, "give it the right to be read")) from error
        given = f"no {name} or {name}.bin there" if path.is_dir() else "no such file or folder"
        raise DataError(Problem(str(path), given, GET))

    return read


def _archive(path: Path) -> Read:
    try:
        with tarfile.open(path) as archive:
            wanted = {f"{name}{suffix}" for name in (*TRAIN, TEST) for suffix in ("", ".bin")}
            files = [member for member in archive if member.isfile() and Path(member.name).name in wanted]
            content = {Path(member.name).name: archive.extractfile(member).read() for member in files}  # type: ignore[union-attr]
    except (tarfile.TarError, OSError, EOFError) as error:
        given = f"no archive of CIFAR-10 ({' '.join(str(error).split())})"
        raise DataError(Problem(str(path), given, GET)) from error

    def read(name: str) -> tuple[str, bytes]:
        for found in (name, f"{name}.bin"):
            if found in content:
                return f"{path}/{found}", content[found]
        raise DataError(Problem(str(path), f"no {name} or {name}.bin in it", GET))

    return read


def _binary(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    size = _LABEL_BYTES + int(np.prod(SHAPE))
    if len(content) != IMAGES_A_FILE * size:
        given = f"{len(content):,} bytes, not {IMAGES_A_FILE * size:,}"
        raise DataError(Problem(where, given, GET))
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    return _checked(where, rows[:, _LABEL_BYTES:], rows[:, 0].astype(np.int64))


def _unpickled(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        tree = _Restricted(io.BytesIO(content), encoding="bytes").load()
        images, labels = tree[b"data"], np.asarray(tree[b"labels"])
    except Exception as error:  # a pickle of foreign bytes raises whatever its damage leads to
        given = f"no batch of CIFAR-10 ({' '.join(str(error).split()) or type(error).__name__})"
        raise DataError(Problem(where, given, GET)) from error
    return _checked(where, images, labels)


def _checked(where: str, images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    shape = (IMAGES_A_FILE, int(np.prod(SHAPE)))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != shape:
        given = f"images are {getattr(images, 'dtype', type(images).__name__)} {getattr(images, 'shape', '')}"
        raise DataError(Problem(where, given, f"uint8 {shape}: {GET}"))
    if labels.dtype.kind not in "iu" or labels.shape != shape[:1] or labels.min() < 0 or labels.max() >= len(NAMES):
        raise DataError(Problem(where, f"labels are {labels.dtype} {labels.shape}", f"0 to 9: {GET}"))
    return images.reshape(-1, *SHAPE), labels.astype(np.int64)


def _dtype(code: str, align: int = 0, copy: int = 0) -> np.dtype[Any]:
    """A dtype from the arguments in old pickles, whose flags are numbers; NumPy 2.4 warns of these."""
    return np.dtype(code, bool(align), bool(copy))  # type: ignore[call-overload]


class _Restricted(pickle.Unpickler):
    """Rebuilds NumPy arrays and refuses everything else: a pickle is a program."""

    _ALLOWED = frozenset(
        [("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")]
        + [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
        + [(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")]
    )

    def find_class(self, module: str, name: str) -> Any:
        """A function or class that arrays are made of.

        Raises:
            pickle.UnpicklingError: it is another.
        """
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if name == "dtype":
            return _dtype
        # NumPy 2 has its core under another name, and warns of the old one.
        return super().find_class(module.replace("numpy.core.", "numpy._core."), name)
