"""Checkpoint files: a saved state is complete and verified, or it is not there.

A file is written under a temporary name, flushed to the disk, and renamed; its sha256 lies beside it, because
`torch.load` notices almost no flipped bit. States hold tensors and plain containers only, so `torch.load` reads them
with its safe default.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast, final

from trainer4090.disk import cannot_write, replacing, sync_folder, write_json, write_text
from trainer4090.errors import CheckpointFileError, Problem

FOLDER = "checkpoints"
KEPT = 2
"""Newest files that are kept besides the best one: the last, and one to fall back on."""
_BLOCK_BYTES = 2**20


def files(run_folder: Path) -> list[Path]:
    """All finished checkpoint files of a run, newest first."""
    return sorted((run_folder / FOLDER).glob("step-*.pt"), reverse=True)


def step_of(path: Path) -> int:
    """The update after which a checkpoint file was saved."""
    return int(path.stem.removeprefix("step-"))


def save(run_folder: Path, step: int, state: dict[str, Any], best: dict[str, Any] | None) -> Path:
    """Write `state` as the newest checkpoint file and drop files that are neither new nor best; its path.

    `best`: `step` and `eval` of the best evaluation so far; its file is kept and named by `best.json`.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written; older files are as they were.
    """
    import torch

    path = _folder(run_folder) / _name(step)
    with replacing(path) as file:
        hashing = _Hashing(file)
        try:
            torch.save(state, cast(BinaryIO, hashing))
        except RuntimeError:
            # torch's archive writer reports a full disk as a RuntimeError about an unexpected position.
            if hashing.failure is not None:
                raise hashing.failure from None
            raise
        # Before the rename: a digest without its file harms nothing, a file without its digest is not trusted.
        write_text(_digest_path(path), f"{hashing.digest.hexdigest()}  {path.name}\n")
    _point(run_folder, step, best)
    _drop_old(run_folder, best)
    return path


def cut_back(run_folder: Path, step: int, best: dict[str, Any] | None, notice: Callable[[str], None]) -> None:
    """Set aside files behind `step`, where training goes on: damaged ones, or those of a course that is given up.

    Left in place they would count as the newest, and the files that are saved next would be dropped for them. Nothing
    is deleted: `notice` is told the new names.
    """
    newer = [path for path in files(run_folder) if step_of(path) > step]
    for path in newer:
        aside = path.with_name(f"aside-{path.name}")
        path.replace(aside)
        if _digest_path(path).exists():
            _digest_path(path).replace(_digest_path(aside))
        notice(f"{path} lies behind update {step}, where training goes on: now {aside.name}")
    if newer:
        _point(run_folder, step, best)


def load(path: Path) -> dict[str, Any]:
    """The verified state in `path`, tensors on the CPU.

    Raises:
        CheckpointFileError: the file is damaged.
    """
    import torch

    try:
        return torch.load(verified(path), map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def verified(path: Path) -> Path:
    """`path` itself, when its content is as it was written.

    Raises:
        CheckpointFileError: it is not.
    """
    reason = damage(path)
    if reason is not None:
        raise _damaged(path, reason)
    return path


def damage(path: Path) -> str | None:
    """Why the file cannot be trusted, or None when its sha256 agrees."""
    try:
        expected = _digest_path(path).read_text(encoding="ascii").split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return "its .sha256 is missing or empty"
    digest = hashlib.sha256()
    try:
        with path.open("rb") as handle:
            while block := handle.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if digest.hexdigest() == expected else "its content does not match its sha256"


def newest_valid(run_folder: Path, notice: Callable[[str], None]) -> Path:
    """The newest file whose content is as it was written; damaged newer ones are named to `notice`.

    Raises:
        CheckpointFileError: there are files and none is valid.
    """
    candidates = files(run_folder)
    for path in candidates:
        reason = damage(path)
        if reason is None:
            return path
        notice(f"{path} is skipped: {reason}")
    given = f"none of {len(candidates)} checkpoint files in {run_folder / FOLDER} is valid"
    raise CheckpointFileError(Problem("resume", given, "start a new run"))


def named(run_folder: Path, which: str, notice: Callable[[str], None]) -> Path:
    """The file that `checkpoint=last|best|PATH` names.

    Raises:
        CheckpointFileError: there is none.
    """
    if which == "last":
        return newest_valid(run_folder, notice)
    path = Path(which)
    if which == "best":
        try:
            record = json.loads((run_folder / FOLDER / "best.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problem = Problem("checkpoint", f"{run_folder} has no best file yet", "use checkpoint=last")
            raise CheckpointFileError(problem) from error
        path = run_folder / FOLDER / record["file"]
    if not path.is_file():
        raise CheckpointFileError(Problem("checkpoint", f"{path} does not exist", "use last, best or a file's path"))
    return path


@final
class _Hashing:
    """A binary file that hashes what passes through it, so that no byte is read twice."""

    def __init__(self, file: BinaryIO) -> None:
        """`file`: open for writing."""
        self._file = file
        self.digest = hashlib.sha256()
        self.failure: OSError | None = None
        """Why a write failed."""

    def write(self, block: bytes) -> int:
        """Write and hash `block`."""
        self.digest.update(block)
        try:
            return self._file.write(block)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Hand everything to the system."""
        self._file.flush()


def _damaged(path: Path, reason: str) -> CheckpointFileError:
    return CheckpointFileError(Problem(str(path), reason, "choose another file of the same run, or its folder"))


def _folder(run_folder: Path) -> Path:
    folder = run_folder / FOLDER
    try:
        if not folder.is_dir():
            folder.mkdir()
            sync_folder(run_folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder


def _name(step: int) -> str:
    return f"step-{step:08d}.pt"


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _point(run_folder: Path, step: int, best: dict[str, Any] | None) -> None:
    """Let `last.json` and `best.json` name the files that are there."""
    folder = run_folder / FOLDER
    write_json(folder / "last.json", {"step": step, "file": _name(step)})
    if best is not None and (folder / _name(best["step"])).is_file():
        write_json(folder / "best.json", {**best, "file": _name(best["step"])})
    else:
        (folder / "best.json").unlink(missing_ok=True)


def _drop_old(run_folder: Path, best: dict[str, Any] | None) -> None:
    kept = {path.name for path in files(run_folder)[:KEPT]}
    if best is not None:
        kept.add(_name(best["step"]))
    # In order of name, so that a file goes before its digest: a kill in between leaves no file without one.
    for path in sorted((run_folder / FOLDER).glob("step-*")):
        if path.name.removesuffix(".sha256") not in kept:
            path.unlink()
    for leftover in (run_folder / FOLDER).glob(".*.tmp"):
        leftover.unlink()  # of a process that was killed inside a save
