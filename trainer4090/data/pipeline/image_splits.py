"""Training and held-out images of a folder: which of its folders is what. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainer4090.data.pipeline.image_tree import (
    LONGEST_LISTING,
    ImageFiles,
    Leftovers,
    class_folders,
    folders_below,
    images_of,
    printable,
)
from trainer4090.data.pipeline.split import stratified
from trainer4090.errors import DataError, Problem
from trainer4090.records import Notice

TRAIN = ("train", "training")
HELD_OUT = ("val", "valid", "validation")
"""Names of split folders, in any case. A test folder is nobody's default: what chooses a checkpoint is no test."""


@dataclass(frozen=True, eq=False)
class Splits:
    """Files of both splits and the names of their classes."""

    class_names: tuple[str, ...]
    train: ImageFiles
    evaluation: ImageFiles
    held_out: str
    """Where the held-out images come from."""
    notices: tuple[Notice, ...]


def split_folder(root: bytes, val_folder: str, val_fraction: float) -> Splits:
    """The images below `root`.

    `val_folder`: a folder below `root`, or `auto` for one with a usual name; where there is none, `val_fraction` of
    every class is held out, the same for every seed.

    Raises:
        DataError: there are no images, fewer than two classes, or held-out images of a class that training lacks.
    """
    train_folder = _one_of(TRAIN, root)
    held_folder = _held_out_folder(root, val_folder, train_folder is not None)
    leftovers = Leftovers()
    train_root = root if train_folder is None else os.path.join(root, train_folder)
    folders = class_folders(train_root, leftovers)
    if held_folder is not None and train_folder is None:
        folders.pop(os.path.normpath(val_folder), None)
    train = images_of(train_root, list(enumerate(folders.values())), leftovers)
    names = tuple(folders)
    notices = [*_check_classes(train_root, names, train, leftovers)]
    if held_folder is None:
        chosen = stratified(train.labels, val_fraction)
        evaluation = train.only(chosen)
        train, held_out = train.only(~chosen), f"{val_fraction:g} of every class"
        if not evaluation.names:
            given = f"{len(train.names)} images with data.val_fraction={val_fraction:g} leave none to evaluate on"
            raise DataError(Problem(printable(root), given, "raise the fraction, or give a val/ folder"))
    else:
        held_root = os.path.join(root, held_folder)
        evaluation = _matched(held_root, names, leftovers)
        held_out = f"{printable(held_folder)}/"
    used = (train_folder, held_folder)
    beside = [] if train_folder is None else [folder for folder in folders_below(root) if folder not in used]
    notices += _notices(beside, names, evaluation, leftovers)
    return Splits(names, train, evaluation, held_out, tuple(notices))


def _one_of(names: tuple[str, ...], root: bytes) -> bytes | None:
    """The folder below `root` that has one of these names; None for none. One without folders inside is a class.

    Raises:
        DataError: there is more than one.
    """
    found = [
        name
        for name in folders_below(root)
        if name.decode("utf-8", "replace").lower() in names and folders_below(os.path.join(root, name))
    ]
    if len(found) > 1:
        given = " and ".join(f"{printable(name)}/" for name in found)
        raise DataError(Problem(printable(root), given, "keep one of them, or name yours by data.val_folder"))
    return found[0] if found else None


def _held_out_folder(root: bytes, val_folder: str, has_train: bool) -> bytes | None:
    if val_folder != "auto":
        if not os.path.isdir(os.path.join(root, os.fsencode(val_folder))):
            given = f"no folder {val_folder} in {printable(root)}"
            raise DataError(Problem("data.val_folder", given, f"there is {_listing(_shown(folders_below(root)))}"))
        return os.fsencode(val_folder)
    found = _one_of(HELD_OUT, root)
    if found is not None and not has_train:
        given = f"{printable(found)}/ without train/"
        raise DataError(Problem(printable(root), given, "put the training images in train/<class>/"))
    return found


def _matched(root: bytes, names: tuple[str, ...], leftovers: Leftovers) -> ImageFiles:
    """The held-out images, their classes numbered as in training.

    Raises:
        DataError: some are of a class that training does not have, or there are none.
    """
    folders = class_folders(root, leftovers)
    label_of = {name: label for label, name in enumerate(names)}
    strange = [name for name, folder in folders.items() if name not in label_of and _any_image(root, folder)]
    if strange:
        given = f"{len(strange)} classes that training does not have: {_listing(strange)}"
        raise DataError(Problem(printable(root), given, f"training has {_listing(names)}"))
    found = sorted((label_of[name], folder) for name, folder in folders.items() if name in label_of)
    files = images_of(root, found, leftovers)
    if not files.names:
        raise DataError(Problem(printable(root), "no image in any class folder", "give <class>/*.jpg as in train/"))
    return files


def _any_image(root: bytes, folder: bytes) -> bool:
    return bool(images_of(root, [(0, folder)], Leftovers()).names)


def _check_classes(root: bytes, names: tuple[str, ...], train: ImageFiles, leftovers: Leftovers) -> list[Notice]:
    where = printable(root)
    if not names and leftovers.others:
        given = f"files, but no folder for a class ({leftovers.describe()})"
        raise DataError(Problem(where, given, "sort the images into a folder for every class: <class>/*.jpg"))
    filled = sorted({names[label] for label in train.labels.tolist()})
    if not filled:
        found = leftovers.describe()
        given = f"no image in {len(names)} class folders{f' (other files: {found})' if found else ''}"
        raise DataError(Problem(where, given, "give <class>/*.jpg, or png, webp, gif, bmp, tif, ppm, avif"))
    if len(filled) == 1:
        given = f"all {len(train.names)} images are of class {filled[0]}"
        raise DataError(Problem(where, given, "one class teaches nothing: add a folder with images of a second one"))
    empty = [name for name in names if name not in filled]
    if not empty:
        return []
    asked, got = "images of every class", f"none of {_listing(empty)}"
    return [Notice("data.path", asked, got, "an empty class keeps its number, and the model an output for it")]


def _notices(beside: list[bytes], names: tuple[str, ...], evaluation: ImageFiles, leftovers: Leftovers) -> list[Notice]:
    notices = []
    counts = evaluation.counts(len(names))
    missing = [name for name, count in zip(names, counts, strict=True) if not count]
    if missing:
        got = f"none of {_listing(missing)}"
        notices.append(Notice("data.path", "held-out images of every class", got, "what is not there is not measured"))
    if beside:
        notices.append(Notice("data.path", "images", _listing(_shown(beside)), "folders beside train/ are left out"))
    if leftovers.hidden or leftovers.others:
        notices.append(Notice("data.path", "images", leftovers.describe(), "these files are left out"))
    return notices


def _shown(folders: list[bytes]) -> list[str]:
    return [f"{printable(folder)}/" for folder in folders] or ["none"]


def _listing(names: tuple[str, ...] | list[str]) -> str:
    rest = f" and {len(names) - LONGEST_LISTING} more" if len(names) > LONGEST_LISTING else ""
    return f"{', '.join(names[:LONGEST_LISTING])}{rest}"
