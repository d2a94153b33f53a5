"""The lines as text: Markdown for people, CSV for spreadsheets. A column that no line has a value in is left out."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainer4090.ablation.line import Line, number

Cell = Callable[[Line], str]


@dataclass(frozen=True)
class Heading:
    """What stands above and below the table."""

    title: str
    device: str
    command: str
    """What measures it again."""
    versions: str
    num_compared: int
    """Updates whose losses are compared."""


def _if(form: str, value: float | None) -> str:
    return "" if value is None else format(value, form)


COLUMNS: Mapping[str, Cell] = {
    "row": lambda line: line.label,
    "batch": lambda line: str(line.batch),
    "micro-batch": lambda line: str(line.micro_batch),
    "items/s": lambda line: "" if line.items_per_s is None else number(line.items_per_s),
    "spread": lambda line: line.spread,
    "speed-up": lambda line: "" if line.speed_up is None else f"{line.speed_up:.2f}x",
    "peak allocated GiB": lambda line: _if(".2f", line.peak_allocated_gib),
    "peak reserved GiB": lambda line: _if(".2f", line.peak_reserved_gib),
    "GPU busy": lambda line: "" if line.gpu_utilization is None else f"{line.gpu_utilization:.0f} %",
    "MFU": lambda line: "" if line.mfu is None else f"{line.mfu * 100:.1f} %",
    "losses beside fp32": lambda line: "" if line.parity is None else str(line.parity),
    "compile s": lambda line: _if(".1f", line.compile_s),
    "status": lambda line: f"{line.status}: {line.reason}" if line.reason else line.status,
    "seen to be active": lambda line: "; ".join([*(f"NOT ACTIVE: {each}" for each in line.doubts), line.active]),
}
"""Head -> the cell of a line."""

COMPARISON = ("difference", "allowed", "num_compared")
"""Fields of a `Parity` that are columns of their own in CSV."""


def as_markdown(lines: Sequence[Line], heading: Heading) -> str:
    """The table below its title, with what its columns mean."""
    shown = {head: cell for head, cell in COLUMNS.items() if any(map(cell, lines))}
    rows = [[cell(line) for cell in shown.values()] for line in lines]
    table = [_markdown_row(list(shown)), _markdown_row(["---"] * len(shown)), *map(_markdown_row, rows)]
    return "\n".join([f"# {heading.title}", "", *_above(lines, heading), "", *table, "", *_below(lines, heading), ""])


def as_csv(lines: Sequence[Line]) -> str:
    """A column for every field of a `Line`, numbers with all their digits, nothing where nothing is known."""
    text = io.StringIO()
    names = [field.name for field in dataclasses.fields(Line)]
    writer = csv.DictWriter(text, [*names, *COMPARISON], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        beside = line.parity
        values = {name: getattr(line, name) for name in names} | {
            "parity": None if beside is None else beside.verdict,
            "doubts": "; ".join(line.doubts),
        }
        values |= {name: getattr(beside, name, None) for name in COMPARISON}
        writer.writerow({name: "" if value is None else value for name, value in values.items()})
    return text.getvalue()


def _above(lines: Sequence[Line], heading: Heading) -> list[str]:
    commits = ", ".join(dict.fromkeys(line.commit for line in lines if line.commit))
    at = f", commit {commits}" if commits else ""
    return [f"{heading.device}, {heading.versions}{at}", "", f"    {heading.command}"]


def _below(lines: Sequence[Line], heading: Heading) -> list[str]:
    repeats = max((line.repeats for line in lines), default=0)
    return [
        f"Items/s: median of {repeats} processes, rows in turn, after the warm-up. Speed-up: against {lines[0].label}.",
        f"Losses: largest relative difference from fp32 over the first {heading.num_compared} updates, beside what",
        "rounding explains in this training, measured with noisy parameters.",
        "Compile: what the warm-up took beyond as many steady updates.",
        "Seen to be active: one update under torch's profiler, in the process that was measured.",
    ]


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(escaped)} |"
