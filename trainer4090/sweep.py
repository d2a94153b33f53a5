"""Sweeps: one fresh process a job, and a table that is up to date after every one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig

from trainer4090 import parse, run_folder, worker
from trainer4090.compose import settle
from trainer4090.errors import TrainerError, exit_code_of, lines_of
from trainer4090.disk import write_text
from trainer4090.spec import dump

Compose = Callable[[Sequence[str]], DictConfig]


@dataclass(frozen=True)
class JobResult:
    """A row of the table."""

    job: int
    overrides: list[str]
    status: str
    """ok, oom, failed, interrupted or killed."""
    exit_code: int
    reason: str
    result: dict[str, Any]
    """Content of the job's `result.json`, empty when it wrote none."""

    @property
    def objective(self) -> float | None:
        """What a sweeper minimises: the last evaluation loss."""
        return self.result.get("eval", {}).get("loss")


class Sweep:
    """The jobs of one sweep in one folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` may exist; a job's own folder may not."""
        self.folder = folder
        self.results: list[JobResult] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._stop: int | None = None

    def run(self, job: int, overrides: list[str], compose: Compose) -> JobResult:
        """Run one job to its end, however it ends, and write its row."""
        words = " ".join(overrides)
        if self._stop is not None:
            result = JobResult(job, overrides, "interrupted", 128 + self._stop, "the sweep was interrupted", {})
        else:
            print(f"[job {job}] {words}", flush=True)
            result = self._run(job, overrides, compose)
        self.results.append(result)
        self._write()
        print(f"[job {job}] {result.status}{_aside(result)}", flush=True)
        if result.status != "ok":
            print(f"trainer4090: job {job} ({words}) {result.status}: {result.reason}", file=sys.stderr, flush=True)
        return result

    def _run(self, job: int, overrides: list[str], compose: Compose) -> JobResult:
        folder = self.folder / str(job)
        try:
            self._prepare(folder, overrides, compose)
        except TrainerError as error:
            return JobResult(job, overrides, "failed", exit_code_of(error), "; ".join(map(str, error.problems)), {})
        code, errors = self._spawn(folder)
        result = _read(folder / "result.json")
        status = result.get("status", "killed" if code < 0 else "failed")
        if code < 0 and status == "ok":
            status = "killed"
        reason = "" if code == 0 else _reason(code, errors)
        return JobResult(job, overrides, status if code else "ok", code, reason, result)

    def _prepare(self, folder: Path, overrides: list[str], compose: Compose) -> None:
        """Check the job and save what its process starts from."""
        spec = parse.parse(settle(compose([*overrides, f"run.dir={folder}"])).tree)
        ready = worker.prepare(spec)
        run_folder.claim(folder)
        for name, text in (("spec.yaml", dump(spec)), ("plan.txt", ready.plan.describe()), ("overrides.txt", "")):
            (folder / name).write_text(text or "\n".join(overrides) + "\n", encoding="utf-8")

    def _spawn(self, folder: Path) -> tuple[int, str]:
        """Exit code (negative: the signal that killed it) and stderr of the job's process."""
        command = [sys.executable, "-m", "trainer4090.worker", str(folder), str(os.getpid())]
        errors = folder / "stderr.log"
        # A session of its own: Ctrl-C reaches the job once, through us.
        with errors.open("wb") as stderr, _forwarding(self._interrupt):
            self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
            code = self._child.wait()
            self._child = None
        text = errors.read_text(encoding="utf-8", errors="replace")
        if not text:
            errors.unlink()
        return code, text

    def _interrupt(self, number: int) -> None:
        self._stop = number
        if self._child is not None:
            self._child.send_signal(number)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = "".join(json.dumps(asdict(result)) + "\n" for result in self.results)
        for name, text in (("sweep.jsonl", rows), ("sweep.md", table(self.results))):
            write_text(self.folder / name, text)


def table(results: Sequence[JobResult]) -> str:
    """The results as a Markdown table with a summary line."""
    lines = [
        "| job | overrides | status | exit | updates | items/s | peak GiB | eval loss | accuracy | reason |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results:
        evaluation, peak = row.result.get("eval", {}), row.result.get("peak_memory_gib", {})
        cells = [
            str(row.job),
            f"`{' '.join(row.overrides)}`",
            row.status,
            str(row.exit_code),
            str(row.result.get("steps", "")),
            _number(row.result.get("items_per_s"), ",.0f"),
            _number(peak.get("allocated"), ".2f"),
            _number(evaluation.get("loss"), ".4f"),
            _number(evaluation.get("accuracy"), ".4f"),
            row.reason.replace("|", "\\|"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    failed = sum(row.status != "ok" for row in results)
    return "\n".join([*lines, "", f"{len(results)} jobs, {failed} failed.", ""])


@contextmanager
def _forwarding(receive: Callable[[int], None]) -> Iterator[None]:
    """Give SIGINT and SIGTERM to a function for the length of the context."""

    def handler(number: int, frame: FrameType | None) -> None:
        receive(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}  # the process ended before it could write one; its exit code says how


def _reason(code: int, errors: str) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    ours = [line.removeprefix("trainer4090: error: ") for line in errors.splitlines() if "trainer4090: error:" in line]
    last = errors.strip().splitlines()[-1:] or [f"exit {code}"]
    return "; ".join(ours or last)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _aside(row: JobResult) -> str:
    accuracy = row.result.get("eval", {}).get("accuracy")
    return "" if accuracy is None else f", accuracy {accuracy:.4f}"
