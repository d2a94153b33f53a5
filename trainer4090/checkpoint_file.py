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
from typing import Any, BinaryIO

from trainer4090.disk import replacing, write_json, write_text
from trainer4090.errors import CheckpointFileError, Problem, RunFolderError

FOLDER = "checkpoints"
KEPT = 2
"""Newest files that are kept besides the best one: the last, and one to fall back on."""
_BLOCK_BYTES = 2**20


def files(run_folder: Path) -> list[Path]:
    """All finished checkpoint files of a run, newest first."""
    return sorted((run_folder / FOLDER).glob("step-*.pt"), reverse=True)


def save(run_folder: Path, step: int, state: dict[str, Any], best: dict[str, Any] | None) -> Path:
    """Write `state` as the newest checkpoint file and drop files that are neither new nor best; its path.

    `best`: `step` and `eval` of the best evaluation so far; its file is kept and named by `best.json`.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written; older files are as they were.
    """
    import torch

    folder = run_folder / FOLDER
    path = folder / _name(step)
    try:
        folder.mkdir(exist_ok=True)
        with replacing(path) as file:
            hashing = _Hashing(file)
            torch.save(state, hashing)
            # Before the rename: a digest without its file harms nothing, a file without its digest is not trusted.
            write_text(_digest_path(path), f"{hashing.digest.hexdigest()}  {path.name}\n")
    except (OSError, RuntimeError) as error:
        # torch's archive writer reports a full disk as a RuntimeError about an unexpected position.
        given = f"cannot be written ({' '.join(str(error).split())})"
        raise RunFolderError(Problem(str(path), given, "free some space, then resume=last")) from error
    write_json(folder / "last.json", {"step": step, "file": path.name})
    if best is not None:
        write_json(folder / "best.json", {**best, "file": _name(best["step"])})
    _drop_old(run_folder, best)
    return path


def load(path: Path) -> dict[str, Any]:
    """The verified state in `path`, tensors on the CPU.

    Raises:
        CheckpointFileError: the file is damaged.
    """
    import torch

    reason = damage(path)
    if reason is None:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise CheckpointFileError(Problem(str(path), reason, "choose another file of the same run, or resume=last"))


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


class _Hashing:
    """A binary file that hashes what passes through it, so that no byte is read twice."""

    def __init__(self, file: BinaryIO) -> None:
        """`file`: open for writing."""
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, block: bytes) -> int:
        """Write and hash `block`."""
        self.digest.update(block)
        return self._file.write(block)

    def flush(self) -> None:
        """Hand everything to the system."""
        self._file.flush()


def _name(step: int) -> str:
    return f"step-{step:08d}.pt"


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _drop_old(run_folder: Path, best: dict[str, Any] | None) -> None:
    best_name = "" if best is None else _name(best["step"])
    for path in files(run_folder)[KEPT:]:
        if path.name != best_name:
            path.unlink()
            _digest_path(path).unlink(missing_ok=True)
    for leftover in (run_folder / FOLDER).glob(".*.tmp"):
        leftover.unlink(missing_ok=True)  # of a process that was killed inside a save
