"""The results of a sweep as its two files: lines of JSON and a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_HEADS = ("job", "overrides", "status", "exit", "updates", "items/s", "peak GiB", "eval loss", "accuracy", "reason")


@dataclass(frozen=True)
class JobResult:
    """A row of the table."""

    job: int
    overrides: list[str]
    status: str
    """ok, oom, failed, interrupted or killed."""
    exit_code: int
    """As a shell sees it: 128 + signal number for a killed job."""
    reason: str
    result: dict[str, Any]
    """Content of the job's `result.json`, empty when it wrote none."""

    @property
    def objective(self) -> float | None:
        """What a sweeper minimises: the last evaluation loss."""
        return self.result.get("eval", {}).get("loss") if self.status == "ok" else None

    @property
    def summary(self) -> str:
        """What the line on the console adds to the status."""
        accuracy = self.result.get("eval", {}).get("accuracy")
        return "" if accuracy is None else f", accuracy {accuracy:.4f}"


def as_jsonl(rows: Sequence[JobResult]) -> str:
    """One object a job."""
    return "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)


def as_markdown(rows: Sequence[JobResult]) -> str:
    """A table with a summary line."""
    lines = [_line(_HEADS), _line(["---"] * len(_HEADS)), *(_line(_cells(row)) for row in rows)]
    failed = sum(row.status != "ok" for row in rows)
    return "\n".join([*lines, "", f"{len(rows)} jobs, {failed} failed.", ""])


def _cells(row: JobResult) -> list[str]:
    evaluation, peak = row.result.get("eval", {}), row.result.get("peak_memory_gib", {})
    return [
        str(row.job),
        f"`{' '.join(row.overrides)}`",
        row.status,
        str(row.exit_code),
        str(row.result.get("steps", "")),
        _number(row.result.get("items_per_s"), ",.0f"),
        _number(peak.get("allocated"), ".2f"),
        _number(evaluation.get("loss"), ".4f"),
        _number(evaluation.get("accuracy"), ".4f"),
        row.reason,
    ]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
