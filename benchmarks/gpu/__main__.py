"""Our command line beside hand-written loops and other frameworks, in turn, on one NVIDIA GPU.

    python -m benchmarks.gpu [WORK ...] [--pairs 3] [--out gpu.jsonl] [--table]

Every contender is a process of its own; in every round each has a turn. A row states card, versions and commit, and is
appended to `--out` as soon as its work is done: a table may be filled over several days. `--table` prints what is
there.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.works import WORKS, Work

Figures = dict[str, float]


def ours(work: Work, row_words: tuple[str, ...], folder: Path) -> Figures:
    """`trainer4090` with the words of a row, from the files of its run; the bar is drawn into a pseudo-terminal."""
    words = [*row_words, f"run.dir={folder / 'run'}"]
    if work.text_repeats:
        text = "\n".join(pydoc_data.topics.topics.values())
        (folder / "text.txt").write_text(text * work.text_repeats, encoding="utf-8")
        words.append(f"data.path={folder / 'text.txt'}")
    code, output = in_terminal([sys.executable, "-m", "trainer4090", *words])
    if code:
        raise RuntimeError(f"{' '.join(words)}: {output[-2000:]}")
    result = json.loads((folder / "run/result.json").read_text())
    points = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    losses = [point["train/loss"] for point in points if "train/loss" in point]
    steps = [point for point in points if "speed/step_time_ms" in point][1:]
    utilization = [point["gpu/utilization"] for point in steps if "gpu/utilization" in point]
    figures = {
        "items_per_s": result["items_per_s"],
        "step_time_ms": result["step_time_ms"],
        "peak_gib": result["peak_memory_gib"]["allocated"],
        "loss": losses[-1],
    }
    return figures | ({"gpu_utilization": statistics.median(utilization)} if utilization else {})


def in_terminal(command: list[str]) -> tuple[int, str]:
    """Exit code and output of a process that sees a terminal, and draws its bar."""
    ours, its = os.openpty()
    process = subprocess.Popen(command, stdout=its, stderr=its, env={**os.environ, "COLUMNS": "120"})
    os.close(its)
    output = b""
    with suppress(OSError):  # how a terminal says that its other end is closed
        while chunk := os.read(ours, 65536):
            output = output[-8192:] + chunk
    os.close(ours)
    return process.wait(), output.decode(errors="replace")


def by_others(name: str) -> Figures:
    """A loop of `loops` or `frameworks`."""
    module = "frameworks" if name.endswith(("_lightning", "_accelerate")) else "loops"
    command = [sys.executable, "-m", f"benchmarks.gpu.{module}", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(name: str, num_pairs: int) -> dict[str, Any]:
    """What was measured of a work: per contender the figures of every turn."""
    import torch

    work, turns = WORKS[name], {}
    for _ in range(num_pairs):
        for contender in dict.fromkeys(("ours", *work.least, *work.goal, *work.rows)):
            begin = time.perf_counter()
            words = {"ours": work.ours, **work.rows}.get(contender)
            with tempfile.TemporaryDirectory() as folder:
                figures = by_others(contender) if words is None else ours(work, words, Path(folder))
            turns.setdefault(contender, []).append(figures)
            seconds = time.perf_counter() - begin
            print(f"{name} {contender}: {figures['items_per_s']:,.0f} {work.unit}/s ({seconds:.0f} s)", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "work": name,
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "turns": turns,
    }


def rate(turns: list[Figures]) -> float:
    """The median of the turns."""
    return statistics.median(figures["items_per_s"] for figures in turns)


def peak_gib(turns: list[Figures]) -> float | None:
    """The largest of the turns, None where it was not taken."""
    return max((figures["peak_gib"] for figures in turns if "peak_gib" in figures), default=None)


def share(turns: dict[str, list[Figures]], contender: str) -> float | None:
    """Our peak of memory over that of the contender."""
    mine, its = peak_gib(turns["ours"]), peak_gib(turns[contender])
    return None if mine is None or its is None else mine / its


def met(measured: dict[str, Any]) -> bool:
    """Whether every rate is what it has to be at least, and every peak of memory what it may be at most."""
    turns, work = measured["turns"], WORKS[measured["work"]]
    rates = [rate(turns["ours"]) / rate(turns[name]) >= least for name, least in work.least.items()]
    peaks = [(share(turns, name) or 1.0) <= most for name, most in work.most_memory.items()]
    return all([*rates, *peaks])


def cells(work: Work, turns: dict[str, list[Figures]], name: str) -> dict[str, str]:
    """Column -> text of a contender's line; what was not taken is empty."""
    figures = turns[name]
    rates = [each["items_per_s"] for each in figures]
    peak, part, of_ours = peak_gib(figures), share(turns, name), name == "ours"
    busy = [each["gpu_utilization"] for each in figures if "gpu_utilization" in each]
    return {
        "contender": name,
        "items/s (turns)": f"{rate(figures):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
        "step ms": f"{statistics.median(each['step_time_ms'] for each in figures):.3f}",
        "loss": f"{figures[0]['loss']:.3f}" if "loss" in figures[0] else "",
        "GPU busy %": f"{statistics.median(busy):.0f}" if busy else "",
        "ours over it": "" if of_ours else f"{rate(turns['ours']) / rate(figures):.3f}",
        "least": str(work.least.get(name, "")),
        "peak GiB": "" if peak is None else f"{peak:.2f}",
        "our share of it": "" if part is None or of_ours else f"{part:.3f}",
        "most": str(work.most_memory.get(name, "")),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, a line a work and contender."""
    lines: list[str] = []
    for measured in rows:
        work, turns = WORKS[measured["work"]], measured["turns"]
        where = f"{work.title} ({measured['card']}, torch {measured['torch']}, {measured['commit']})"
        for name in turns:
            line = {"work": where, **cells(work, turns, name)}
            if not lines:
                lines = ["| " + " | ".join(line) + " |", "|" + " --- |" * len(line)]
            lines.append("| " + " | ".join(line.values()) + " |")
            where = ""
    return "\n".join(lines)


def main() -> int:
    """Measure and print; 0 when every row is what it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}; all unless given")
    parser.add_argument("--pairs", type=int, default=3, help="turns of every contender")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu.jsonl"), help="where rows are appended")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the rows that are there")
    options = parser.parse_args()
    unknown = [name for name in options.works if name not in WORKS]
    if unknown:
        parser.error(f"unknown work {', '.join(unknown)}; known are {', '.join(WORKS)}")
    for name in () if options.table else options.works or WORKS:
        measured = row(name, options.pairs)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measured) + "\n")
    text = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
    rows = {measured["work"]: measured for measured in map(json.loads, text.splitlines())}  # the newest of each
    print(table(list(rows.values())))
    return 0 if all(map(met, rows.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
