"""The results of a sweep as its two files: lines of JSON and a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_HEADS = (
    "job",
    "overrides",
    "status",
    "exit",
    "updates",
    "items/s",
    "peak GiB",
    "eval loss",
    "accuracy",
    "best",
    "reason",
)


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
        """What a sweeper minimises: the last evaluation loss, or the best value of another `train.best_by`.

        Where higher is better it is the negative of that value.
        """
        best = self.result.get("best")
        if self.status != "ok" or best is None:  # no evaluation had the value
            return None
        if best["by"] == "eval/loss":
            return self.result["eval"]["loss"]
        return -_value(best) if best["higher_is_better"] else _value(best)

    @property
    def summary(self) -> str:
        """What the line on the console adds to the status."""
        accuracy = self.result.get("eval", {}).get("accuracy")
        return "" if accuracy is None else f", accuracy {accuracy:.4f}"


def _value(best: dict[str, Any]) -> float:
    """The value that made an evaluation the best."""
    return best["eval"][best["by"].removeprefix("eval/")]


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
        _best(row.result.get("best")),
        row.reason,
    ]


def _best(best: dict[str, Any] | None) -> str:
    return "" if best is None else f"{best['by'].removeprefix('eval/')} {_value(best):.4f} at {best['step']}"


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
