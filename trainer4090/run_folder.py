"""Run folders: their names, their lock, and finding one again. Imports no torch."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from trainer4090 import checkpoint_file
from trainer4090.errors import CheckpointFileError, ConfigError, Problem, RunFolderError
from trainer4090.schema import NUM_NEAREST
from trainer4090.spec import RunSection

OUTPUTS = Path("outputs")


def slug(name: str) -> str:
    """`name` with everything but letters, digits, '.', '_' and '-' replaced, so that printed paths need no quoting."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"


def fresh(run: RunSection, prefix: str = "") -> Path:
    """A folder for a new run (or, with prefix `sweep-`, a new sweep): `run.dir`, or a name that no other run has."""
    if run.dir is not None:
        return Path(run.dir)
    # The random part keeps two starts in one second apart.
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return OUTPUTS / slug(run.name or "run") / f"{prefix}{stamp}-{secrets.token_hex(3)}"


def claim(folder: Path, again: bool = False) -> None:
    """Create `folder` for a new run. With `again` it may hold a run that was killed before it saved anything.

    Raises:
        RunFolderError: it holds something else, or cannot be written.
    """
    begun = again and (folder / "spec.yaml").is_file() and not checkpoint_file.files(folder)
    with _writing(folder):
        if folder.is_dir() and not begun and any(not _is_remnant(path) for path in folder.iterdir()):
            remedy = "give another run.dir, or resume=last to go on with this run"
            raise RunFolderError(Problem("run.dir", f"{folder} is not empty", remedy))
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel drops it when the process ends, however it ends.

    Raises:
        RunFolderError: another process holds it, or the folder cannot be written.
    """
    with _writing(folder):
        handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = Problem(
                "run.dir", f"{folder} is in use by another process", "wait for it, or give another run.dir"
            )
            raise RunFolderError(problem) from None
        yield
    finally:
        os.close(handle)


def point_latest(folder: Path, notice: Callable[[str], None] = print) -> None:
    """Let `outputs/latest` lead to `folder`, replaced in one step; without it a run written elsewhere goes on."""
    temporary = OUTPUTS / f".latest-{secrets.token_hex(3)}"
    try:
        OUTPUTS.mkdir(exist_ok=True)
        temporary.symlink_to(os.path.relpath(folder, OUTPUTS))
        temporary.replace(OUTPUTS / "latest")
    except OSError as error:
        notice(f"{OUTPUTS / 'latest'} is not set ({error.strerror})")
        temporary.unlink(missing_ok=True)


def runs_of(name: str) -> list[Path]:
    """Run folders of this run name, newest first."""
    parent = OUTPUTS / slug(name)
    folders = [path.parent for path in parent.glob("*/spec.yaml")] if parent.is_dir() else []
    return sorted(folders, key=lambda folder: folder.name, reverse=True)


def find(word: str) -> Path:
    """The run folder that `run=` names: `latest` or a path.

    Raises:
        ConfigError: there is no run there, or a sweep whose jobs are runs.
    """
    folder = OUTPUTS / "latest" if word == "latest" else Path(word)
    if (folder / "sweep.jsonl").is_file():
        raise ConfigError(_is_sweep(folder))
    if not (folder / "spec.yaml").is_file():
        raise ConfigError(
            Problem("run", f"{folder} holds no run", "give a run's folder, or run=latest after a training")
        )
    return folder.resolve() if word == "latest" else folder


def _is_sweep(folder: Path) -> Problem:
    jobs = sorted((path.parent for path in folder.resolve().glob("*/spec.yaml")), key=lambda path: int(path.name))
    listing = " or ".join(f"run={os.path.relpath(job)}" for job in jobs[:NUM_NEAREST])
    rest = f" (or another of its {len(jobs)} jobs)" if len(jobs) > NUM_NEAREST else ""
    return Problem("run", f"{folder} is a sweep, not a run", f"name one of its jobs: {listing}{rest}")


def to_resume(resume: str, run: RunSection) -> Path | None:
    """What `resume` names: a run folder or a checkpoint file; None when `auto` finds nothing to go on with.

    Raises:
        CheckpointFileError: nothing is there.
        ConfigError: a path and another `run.dir` are both given.
    """
    if resume not in ("last", "auto"):
        return _resume_path(Path(resume), run)
    candidates: Sequence[Path] = [Path(run.dir)] if run.dir is not None else runs_of(run.name or "run")
    for folder in candidates:
        if checkpoint_file.files(folder):
            return folder
    if resume == "auto":
        return None
    where = str(candidates[0]) if candidates else f"{OUTPUTS}/{slug(run.name or 'run')}"
    remedy = "start without resume, or resume=auto to start afresh when there is none"
    raise CheckpointFileError(Problem("resume", f"no checkpoint file in {where}", remedy))


def remove_remnants(folder: Path) -> None:
    """Remove files that a killed process left half written in `folder`, which the caller has locked."""
    for path in folder.iterdir():
        if path.suffix == ".tmp" and _is_remnant(path):
            path.unlink()


def folder_of(path: Path) -> Path:
    """Run folder of a run folder or a checkpoint file."""
    return path.parent.parent if path.suffix == ".pt" else path


def _is_remnant(path: Path) -> bool:
    """Whether a process that was killed while it claimed the folder leaves such a file."""
    return path.name == ".lock" or (path.name.startswith(".") and path.suffix == ".tmp")


def _resume_path(path: Path, run: RunSection) -> Path:
    if not path.exists():
        remedy = "give a run folder or one of its checkpoints/step-*.pt"
        raise CheckpointFileError(Problem("resume", f"{path} does not exist", remedy))
    folder = folder_of(path)
    if run.dir is not None and Path(run.dir).resolve() != folder.resolve():
        given = f"{run.dir} beside resume={path}"
        raise ConfigError(Problem("run.dir", given, "a run goes on in its own folder: leave run.dir out"))
    if not checkpoint_file.files(folder):
        raise CheckpointFileError(Problem("resume", f"no checkpoint file in {folder}", "start without resume"))
    return path


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        problem = Problem("run.dir", f"{folder} cannot be written ({reason})", "give a folder that you may write")
        raise RunFolderError(problem) from error
