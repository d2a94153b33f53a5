"""What one process of a row has come to: a line of `ablate.jsonl`, from which every table is made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer4090.errors import Problem, RunFolderError, TrainerError, exit_code_of
from trainer4090.sweeps.child import Ended, result_of

FINAL = ("ok", "oom", "refused", "timeout")
"""Ends that a second attempt would not change; a row that failed in another way is measured anew by a resume."""
GPU_SAMPLE_S = 1.0
"""Age that a reading of the card may have, so a log point earlier than this tells of the warm-up."""


@dataclass(frozen=True)
class Measurement:
    """One process."""

    digest: str
    """Of its row."""
    label: str
    repeat: int
    status: str
    """ok, oom, refused, timeout, failed, killed or interrupted."""
    exit_code: int
    reason: str
    result: dict[str, Any]
    """Content of its `result.json`."""
    speed: dict[str, float]
    """Means of `speed/mfu` and `gpu/utilization` over the measured log points, where they are known."""
    commit: str | None
    """Of the working directory, with a + when it held changes."""


def refused(digest: str, label: str, error: TrainerError) -> Measurement:
    """The measurement of a row that no process can run."""
    reason = "; ".join(map(str, error.problems))
    return Measurement(digest, label, 0, "refused", exit_code_of(error), reason, {}, {}, None)


def of_process(digest: str, label: str, repeat: int, ended: Ended, folder: Path, warm_up: int) -> Measurement:
    """The measurement that a process which has ended left in its folder."""
    result = result_of(folder)
    status = "ok" if ended.code == 0 else "killed" if ended.code < 0 else result.get("status", "failed")
    if ended.exit_code == 2:
        status = "refused"
    reason = "" if ended.code == 0 else ended.reason
    if ended.timed_out:
        status, reason = "timeout", "took longer than ablate.timeout_s"
    speed = _speed(folder / "metrics.jsonl", warm_up)
    return Measurement(digest, label, repeat, status, ended.exit_code, reason, result, speed, _commit(folder))


def as_jsonl(measurements: Sequence[Measurement]) -> str:
    """One object a process."""
    return "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in measurements)


def load(path: Path) -> list[Measurement]:
    """The measurements of an earlier start; none without a file.

    Raises:
        RunFolderError: the file is not ours.
    """
    if not path.is_file():
        return []
    try:
        return [Measurement(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError) as error:
        raise RunFolderError(Problem(str(path), f"cannot be read ({error})", "give another run.dir")) from error


def _speed(path: Path, warm_up: int) -> dict[str, float]:
    """Means over the log points after the warm-up, weighted by their time."""
    if not path.is_file():
        return {}
    sums: dict[str, tuple[float, float]] = {}
    before, elapsed_s = warm_up, 0.0
    for point in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        step_time_ms = point.get("speed/step_time_ms")
        if point["step"] <= warm_up or step_time_ms is None:
            continue
        duration_s = (point["step"] - before) * step_time_ms / 1000
        before, elapsed_s = point["step"], elapsed_s + duration_s
        for tag in ("speed/mfu", "gpu/utilization"):
            if tag in point and (tag == "speed/mfu" or elapsed_s > GPU_SAMPLE_S):
                total, weight = sums.get(tag, (0.0, 0.0))
                sums[tag] = (total + point[tag] * duration_s, weight + duration_s)
    return {tag.partition("/")[2]: total / weight for tag, (total, weight) in sums.items() if weight > 0}


def _commit(folder: Path) -> str | None:
    path = folder / "env.json"
    git = json.loads(path.read_text(encoding="utf-8")).get("git", {}) if path.is_file() else {}
    commit = git.get("commit")
    return None if commit is None else f"{commit[:10]}{'+' if git.get('diff') else ''}"
