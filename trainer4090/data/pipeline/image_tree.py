"""Folders of images, a folder a class: which files there are, and what class each is of. Imports no torch.

Names of classes come from the training folder, sorted as text, so that 10 comes before 2; a held-out folder is matched
by name. Hidden files and folders, and files that are no images by their suffix, are no part of the set.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer4090.errors import DataError, Problem

SUFFIXES = tuple(
    f".{suffix}".encode()
    for suffix in "jpg jpeg jpe jfif png webp gif bmp dib tif tiff ppm pgm pbm pnm avif".split()  # noqa: SIM905
)
"""Of images, in lower case; files are compared without regard to case."""
_LITTER = (b"__MACOSX", b"@eaDir", b"lost+found")
"""Folders that archives and file systems leave behind: no classes."""
_LAYOUT = "give PATH/train/<class>/*.jpg beside PATH/val/<class>/*.jpg, or only PATH/<class>/*.jpg"
LONGEST_LISTING = 10


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images of one split, class after class, sorted by path within each."""

    folder: bytes
    names: list[bytes]
    """Paths below `folder`."""
    labels: np.ndarray
    """int64 (files,)."""

    def fingerprint(self) -> str:
        """Hexadecimal digits that depend on every name and label and on their order."""
        digest = hashlib.sha256(b"\0".join(self.names))
        digest.update(self.labels.tobytes())
        return digest.hexdigest()[:16]

    def counts(self, num_classes: int) -> list[int]:
        """Number of images of each class."""
        return np.bincount(self.labels, minlength=num_classes).tolist()

    def only(self, chosen: np.ndarray) -> ImageFiles:
        """The files at which `chosen`, bool (files,), holds."""
        names = [self.names[index] for index in np.flatnonzero(chosen)]
        return ImageFiles(self.folder, names, self.labels[chosen])


@dataclass(frozen=True, eq=False)
class Leftovers:
    """What a scan left out."""

    hidden: list[bytes] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    """Suffix -> number of files that are no images."""

    def describe(self) -> str:
        """Numbers in words, empty when nothing was left out."""
        parts = [f"{number:,} {suffix}" for suffix, number in self.others.most_common(LONGEST_LISTING)]
        if self.hidden:
            parts.append(f"{len(self.hidden):,} hidden")
        return ", ".join(parts)


def class_folders(root: bytes, leftovers: Leftovers) -> dict[str, bytes]:
    """Name -> folder of every class below `root`, sorted by name.

    Raises:
        DataError: `root` cannot be read, or a name is no text.
    """
    folders: dict[str, bytes] = {}
    for entry in _entries(root):
        if _is_litter(entry.name):
            leftovers.hidden.append(entry.name)
        elif entry.is_dir():
            name = _text(entry)
            if name in folders:
                given = f"two folders are called {name}, written in two ways of Unicode"
                raise DataError(Problem(printable(root), given, "rename one of them, or put their files together"))
            folders[name] = entry.name
        else:
            leftovers.others[f"{_suffix(entry.name)} outside the class folders"] += 1
    return dict(sorted(folders.items()))


def images_of(root: bytes, folders: Sequence[tuple[int, bytes]], leftovers: Leftovers) -> ImageFiles:
    """The images below each of `folders`, which are pairs (class, folder below `root`) with ascending classes."""
    names: list[bytes] = []
    counts = []
    for _, folder in folders:
        # The root counts as seen: a link back to it would bring the images of all classes into this one.
        found = sorted(_images_below(root, folder, leftovers, {_identity(root)}))
        names += found
        counts.append(len(found))
    labels = np.repeat(np.array([label for label, _ in folders], dtype=np.int64), counts)
    return ImageFiles(root, names, labels)


def folders_below(root: bytes) -> list[bytes]:
    """Names of all folders directly below `root` that could hold images, sorted.

    Raises:
        DataError: `root` is missing or no folder.
    """
    return sorted(entry.name for entry in _entries(root) if entry.is_dir() and not _is_litter(entry.name))


def printable(path: bytes) -> str:
    """A path as text; bytes that are no UTF-8 are shown as escapes."""
    return path.decode("utf-8", "backslashreplace")


def _images_below(root: bytes, folder: bytes, leftovers: Leftovers, seen: set[tuple[int, int]]) -> Iterator[bytes]:
    """Paths below `root` of the images in `folder` and its subfolders; links are followed, each folder once."""
    identity = _identity(os.path.join(root, folder))
    if identity in seen:
        return
    seen.add(identity)
    for entry in _entries(os.path.join(root, folder)):
        if _is_litter(entry.name):
            leftovers.hidden.append(entry.name)
        elif entry.is_dir():
            yield from _images_below(root, os.path.join(folder, entry.name), leftovers, seen)
        elif _is_image(entry):
            yield os.path.join(folder, entry.name)
        else:
            leftovers.others[_suffix(entry.name)] += 1


def _identity(folder: bytes) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _is_image(entry: os.DirEntry[bytes]) -> bool:
    # A link to nothing stays in the set, so that reading it says what is missing; a pipe would be waited for.
    return entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or entry.is_symlink())


def _is_litter(name: bytes) -> bool:
    return name.startswith(b".") or name in _LITTER


def _suffix(name: bytes) -> str:
    return printable(os.path.splitext(name)[1].lower()) or "without a suffix"


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError as error:
        raise DataError(Problem(printable(folder), "no such folder", f"as data.path {_LAYOUT}")) from error
    except NotADirectoryError as error:
        given = "a file, not a folder"
        raise DataError(Problem(printable(folder), given, f"unpack it, and as data.path {_LAYOUT}")) from error
    except OSError as error:
        given = f"cannot be read ({error.strerror})"
        raise DataError(Problem(printable(folder), given, "give it the right to be read")) from error


def _text(entry: os.DirEntry[bytes]) -> str:
    try:
        return unicodedata.normalize("NFC", entry.name.decode())
    except UnicodeDecodeError as error:
        given = "the name of a class that is no UTF-8"
        raise DataError(Problem(printable(entry.path), given, "rename it: convmv -f latin1 -t utf8")) from error
