"""What a rank leaves behind about its end, for the process that started it."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer4090.disk import write_json
from trainer4090.errors import InterruptedRunError, Problem, TrainerError, exit_code_of

_LOST_CONTACT = ("connection closed", "connection reset", "broken pipe", "timed out", "nccl", "failed to connect")
"""Words in what torch says when it is another rank that has failed."""


@dataclass(frozen=True)
class Report:
    """The end of a rank as it saw it itself."""

    exit_code: int
    at_s: float
    """By the clock that all processes of a machine share."""
    problems: tuple[Problem, ...] = ()
    """Of an error of ours."""
    text: str = ""
    """Of any other error, in one line."""
    traceback: str = ""
    lost_contact: bool = False
    """What it met is that another rank was gone."""


def path_of(folder: Path, rank: int) -> Path:
    """Where a rank of the run in `folder` leaves its report."""
    return folder / f"rank-{rank}.json"


def write(path: Path, error: BaseException | None) -> int:
    """Leave a report on the end of this process; its exit code."""
    code = 0 if error is None else exit_code_of(error)
    report = Report(code, time.monotonic())
    if isinstance(error, TrainerError):
        report = Report(code, report.at_s, error.problems, traceback=_told(error))
    elif error is not None:
        text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
        lost = isinstance(error, RuntimeError) and any(word in text.lower() for word in _LOST_CONTACT)
        report = Report(code, report.at_s, text=text, traceback=_told(error), lost_contact=lost)
    write_json(path, asdict(report))
    return code


def _told(error: BaseException) -> str:
    return "" if isinstance(error, InterruptedRunError) else "".join(traceback.format_exception(error))


def read(path: Path) -> Report | None:
    """The report of a rank, None when it has left none."""
    if not path.is_file():
        return None
    tree = json.loads(path.read_text(encoding="utf-8"))
    problems = tuple(Problem(**problem) for problem in tree.pop("problems"))
    return Report(**tree, problems=problems)
