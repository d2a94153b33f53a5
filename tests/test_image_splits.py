"""Folders of images: classes come from training and are matched by name, and what does not belong is said."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import image_files as files
import numpy as np
import pytest

from trainer4090.data.pipeline.image_splits import Splits, split_folder
from trainer4090.errors import DataError


def split(root: Path, val_folder: str = "auto", val_fraction: float = 0.25) -> Splits:
    return split_folder(os.fsencode(root), val_folder, val_fraction)


def pairs(splits: Splits, part: str = "evaluation") -> list[tuple[str, str]]:
    """(name of the class, path below the split's folder) of every file."""
    found = getattr(splits, part)
    return [
        (splits.class_names[label], os.fsdecode(name))
        for label, name in zip(found.labels.tolist(), found.names, strict=True)
    ]


def said(splits: Splits) -> str:
    return "\n".join(map(str, splits.notices))


def test_held_out_classes_are_matched_by_name(tmp_path: Path) -> None:
    """B44: with val numbering its own folders, c would be class 1."""
    files.coloured(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    files.coloured(tmp_path / "val", {"a": 1, "c": 1})
    splits = split(tmp_path)
    assert splits.class_names == ("a", "b", "c")
    assert splits.evaluation.labels.tolist() == [0, 2]
    assert pairs(splits) == [("a", "a/0.png"), ("c", "c/0.png")]
    assert "asked held-out images of every class, got none of b" in said(splits)
    assert splits.held_out == "val/"


def test_an_empty_class_keeps_its_number(tmp_path: Path) -> None:
    files.coloured(tmp_path / "train", {"a": 2, "b": 0, "c": 2})
    files.coloured(tmp_path / "val", {"a": 1, "c": 1})
    splits = split(tmp_path)
    assert splits.class_names == ("a", "b", "c")
    assert splits.train.labels.tolist() == [0, 0, 2, 2]
    assert "asked images of every class, got none of b" in said(splits)


def test_numbers_are_sorted_as_text(tmp_path: Path) -> None:
    for name in ("1", "2", "10"):
        files.write(tmp_path / name / "x.png")
        files.write(tmp_path / name / "y.png")
    assert split(tmp_path, val_fraction=0.5).class_names == ("1", "10", "2")


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "Valid"), ("training", "validation"), ("TRAIN", "VAL")])
def test_names_of_the_split_folders(tmp_path: Path, names: tuple[str, str]) -> None:
    files.coloured(tmp_path / names[0], {"a": 3, "b": 3})
    files.coloured(tmp_path / names[1], {"a": 1, "b": 2})
    files.coloured(tmp_path / "test", {"a": 1})
    splits = split(tmp_path)
    assert (len(splits.train.names), len(splits.evaluation.names)) == (6, 3)
    assert "got test/: folders beside train/ are left out" in said(splits)
    assert pairs(split(tmp_path, val_folder="test")) == [("a", "a/0.png")]


@pytest.mark.parametrize("below", ["", "train"])
def test_a_fraction_is_held_out_where_there_is_no_folder(tmp_path: Path, below: str) -> None:
    files.coloured(tmp_path / below, {"a": 8, "b": 4, "c": 1})
    splits = split(tmp_path)
    assert np.bincount(splits.evaluation.labels, minlength=3).tolist() == [2, 1, 0]
    assert not set(pairs(splits)) & set(pairs(splits, "train"))
    assert splits.held_out == "0.25 of every class"


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "car", "valid"):
        for number in range(4):
            files.write(tmp_path / name / f"{number}.png")
    assert split(tmp_path).class_names == ("car", "train", "valid")


def test_what_is_no_image_is_left_out_and_counted(tmp_path: Path) -> None:
    files.coloured(tmp_path, {"a": 4, "b": 4})
    for name in (".ipynb_checkpoints/x.png", "__MACOSX/a/x.png", "a/.DS_Store", "a/._0.png", "a/.cache/x.png"):
        files.write(tmp_path / name)
    for name in ("a/notes.txt", "b/photo.heic", "b/photo2.HEIC", "labels.csv"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "a/pipe.png")
    splits = split(tmp_path)
    assert splits.class_names == ("a", "b")
    assert len(splits.train.names) == 6
    notice = said(splits)
    assert "2 .heic" in notice and "1 .txt" in notice and "5 hidden" in notice
    assert "1 .csv outside the class folders" in notice and "1 .png" in notice


def test_nested_folders_links_and_suffixes(tmp_path: Path) -> None:
    files.coloured(tmp_path, {"a": 1, "b": 2})
    files.write(tmp_path / "a/deep/er/x.JPEG")
    files.write(tmp_path / "a/y.TiFF")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    (tmp_path / "a/deep/root").symlink_to(tmp_path)
    files.write(tmp_path.parent / "elsewhere/z.png")
    (tmp_path / "a/linked").symlink_to(tmp_path.parent / "elsewhere")
    (tmp_path / "a/gone.png").symlink_to(tmp_path / "nowhere")
    splits = split(tmp_path, val_fraction=0.5)
    names = sorted(name for _, name in pairs(splits) + pairs(splits, "train"))
    assert names == [
        "a/0.png", "a/deep/er/x.JPEG", "a/gone.png", "a/linked/z.png", "a/y.TiFF", "b/0.png", "b/1.png",
    ]  # fmt: skip


def test_names_in_any_script_and_either_form_of_unicode(tmp_path: Path) -> None:
    for name in ("café", "猫"):
        files.write(tmp_path / "train" / name / "é 1.png")
        files.write(tmp_path / "val" / unicodedata.normalize("NFD", name) / "x.png")
    splits = split(tmp_path)
    assert splits.class_names == ("café", "猫")
    assert splits.evaluation.labels.tolist() == [0, 1]
    (tmp_path / "train" / unicodedata.normalize("NFD", "café")).mkdir()
    with pytest.raises(DataError, match="two folders are called café"):
        split(tmp_path)


def test_file_names_that_are_no_text(tmp_path: Path) -> None:
    files.coloured(tmp_path, {"a": 4, "b": 4})
    os.rename(tmp_path / "a/0.png", os.path.join(os.fsencode(tmp_path), b"a/\xe9.png"))
    assert b"a/\xe9.png" in split(tmp_path).evaluation.names
    os.rename(tmp_path / "b", os.path.join(os.fsencode(tmp_path), b"b\xe9"))
    with pytest.raises(DataError, match=r"b\\xe9: the name of a class that is no UTF-8; rename it"):
        split(tmp_path)


def make(**folders: int) -> Callable[[Path], None]:
    """Images by folder, `__` for the slash."""

    def build(root: Path) -> None:
        for name, count in folders.items():
            (root / name.replace("__", "/")).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                files.write(root / name.replace("__", "/") / f"{number}.png")

    return build


REFUSED = {
    "missing": (lambda root: root.rmdir(), "auto", "no such folder; as data.path give PATH/train/<class>"),
    "a file": (lambda root: root.rmdir() or root.write_text("x"), "auto", "a file, not a folder; unpack it"),
    "nothing": (lambda root: None, "auto", "no image in 0 class folders; give <class>/"),
    "no folders": (make(**{".": 3}), "auto", "files, but no folder for a class .3 .png outside"),
    "empty classes": (make(a=0, b=0), "auto", "no image in 2 class folders; give <class>/"),
    "one class": (make(a=3), "auto", "all 3 images are of class a; one class teaches nothing"),
    "one filled class": (make(a=3, b=0), "auto", "all 3 images are of class a; one class teaches nothing"),
    "unknown class": (
        make(train__a=2, train__b=2, val__a=1, val__x=1, val__y=1),
        "auto",
        "val: 2 classes that training does not have: x, y; training has a, b",
    ),
    "val alone": (make(val__a=2, val__b=2), "auto", "val/ without train/; put the training images in train/"),
    "two of them": (make(train__a=2, train__b=2, val__a=1, valid__a=1), "auto", "val/ and valid/; keep one of them"),
    "empty val": (make(train__a=2, train__b=2, val__a=0), "auto", "val: no image in any class folder"),
    "none held out": (make(a=2, b=2), "auto", "4 images with data.val_fraction=0.25 leave none to evaluate on"),
    "wrong val": (make(train__a=2, train__b=2), "tset", "data.val_folder: no folder tset in .*; there is train/"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "val_folder", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, build: Callable[[Path], None], val_folder: str, text: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    build(root)
    with pytest.raises(DataError, match=text) as caught:
        split(root, val_folder)
    assert len(str(caught.value).splitlines()) == 1


def test_the_order_of_a_folder_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the file system, which differs between two copies of the same files."""
    files.coloured(tmp_path, {"a": 5, "b": 5})
    first = split(tmp_path)
    scandir = os.scandir

    class Reversed:
        def __init__(self, folder: bytes) -> None:
            with scandir(folder) as entries:
                self.entries = list(entries)[::-1]

        def __enter__(self) -> list[os.DirEntry[bytes]]:
            return self.entries

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Reversed)
    second = split(tmp_path)
    assert first.train.names == second.train.names
    assert first.train.fingerprint() == second.train.fingerprint()
    (tmp_path / "a/0.png").rename(tmp_path / "a/9.png")
    assert split(tmp_path).train.fingerprint() != first.train.fingerprint()
