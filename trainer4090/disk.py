"""Files that a kill or a full disk leaves readable: appended by whole writes, or replaced as a whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, final

from trainer4090.errors import Problem, RunFolderError


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """Error of a file in the run folder that cannot be written."""
    reason = error.strerror or str(error)
    return RunFolderError(Problem(str(path), reason, "free some space or give another folder with run.dir"))


@final
class AppendFile:
    """A file that grows by unbuffered writes, so a killed process loses none and closing cannot fail late."""

    def __init__(self, path: Path) -> None:
        """Opens `path`, a new or an existing file.

        Raises:
            RunFolderError: it cannot be written.
        """
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, content: bytes) -> None:
        """Writes `content` behind the rest.

        Raises:
            RunFolderError: it was not written or not completely.
            ValueError: the file is closed.
        """
        try:
            if self._file.write(content) != len(content):
                raise OSError("only a part was written, the disk is full")
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._file.close()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends; after an error `path` is as it was.

    Raises:
        RunFolderError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes names that were created or replaced in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_text(path: Path, text: str) -> None:
    """Writes `text` behind the rest of `path`.

    Raises:
        RunFolderError: the file cannot be written.
    """
    file = AppendFile(path)
    try:
        file.append(text.encode("utf-8", errors="backslashreplace"))
    finally:
        file.close()


def write_text(path: Path, text: str) -> None:
    """Replaces `path` by `text` in one step that survives a power cut.

    Raises:
        RunFolderError: the file cannot be written.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8", errors="backslashreplace"))


def write_json(path: Path, tree: Any) -> None:
    """Replaces `path` by `tree` as JSON in one step that survives a power cut; non-finite numbers become null.

    Raises:
        RunFolderError: the file cannot be written.
        TypeError: `tree` holds something besides plain containers, texts and numbers.
    """
    write_text(path, json.dumps(_finite(tree), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
