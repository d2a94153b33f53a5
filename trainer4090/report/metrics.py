"""metrics.jsonl: one JSON object a log point."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from trainer4090.disk import AppendFile, replacing

_encode = json.JSONEncoder(allow_nan=False).encode


def line(step: int, values: Mapping[str, float]) -> str:
    """One line of the file, without its end.

    JSON has no NaN: a tag whose value is not finite is null, and `non_finite` names what it was.
    """
    try:
        return _encode({"step": step, **values})
    except ValueError:
        finite = {tag: value if math.isfinite(value) else None for tag, value in values.items()}
        lost = {tag: str(float(value)) for tag, value in values.items() if not math.isfinite(value)}
        return _encode({"step": step, **finite, "non_finite": lost})


def keeps(content: bytes, start_step: int) -> bool:
    """Whether a line stays in the file when training goes on after update `start_step`.

    A torn line (the process was killed while writing) does not. A start at 0 repeats everything, so nothing stays.
    """
    try:
        record: Any = json.loads(content)
    except ValueError:
        return False
    step = record.get("step") if isinstance(record, dict) else None
    return content.endswith(b"\n") and isinstance(step, int) and 0 <= step <= start_step and start_step > 0


def cut_back(path: Path, start_step: int) -> int:
    """Number of lines removed from the file, in one atomic step, because they lie after `start_step` or are torn."""
    if not path.exists():
        return 0
    num_dropped = 0
    with replacing(path) as new, path.open("rb") as old:
        for content in old:
            if keeps(content, start_step):
                new.write(content)
            else:
                num_dropped += 1
    return num_dropped


@final
class Metrics:
    """Writer of metrics.jsonl."""

    def __init__(self, path: Path, start_step: int) -> None:
        """Cuts the file back to `start_step` and opens it.

        Raises:
            RunFolderError: the file cannot be written.
        """
        self.num_dropped = cut_back(path, start_step)
        self._file = AppendFile(path)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line.

        Raises:
            RunFolderError: the line was not written or not completely.
        """
        self._file.append((line(step, values) + "\n").encode())

    def close(self, final: Mapping[str, float]) -> None:
        """Closes the file; `final` belongs into result.json."""
        self._file.close()
