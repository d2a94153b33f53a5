"""Sweeps: one fresh process a job, and a table that is up to date after every one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from omegaconf import DictConfig

from trainer4090 import parse, resume, run_folder, worker
from trainer4090.composition import overrides, settle
from trainer4090.disk import write_json, write_text
from trainer4090.errors import TrainerError, exit_code_of, lines_of
from trainer4090.plan import Plan
from trainer4090.spec import RunSpec, dump
from trainer4090.sweeps.table import JobResult, as_jsonl, as_markdown

Compose = Callable[[Sequence[str]], DictConfig]


def plan_of(spec: RunSpec) -> Plan:
    """The checked plan of a job: on a card by name for `task=plan`, else on a device of this machine.

    Raises:
        TrainerError: the job cannot be run.
    """
    return worker.planned(spec) if spec.root.task == "plan" else worker.prepare(spec).plan


def command(folder: Path) -> list[str]:
    """What starts the process of a job from the `spec.yaml` in its folder."""
    return [sys.executable, "-m", "trainer4090.worker", str(folder), str(os.getpid())]


@final
class Sweep:
    """The jobs of one sweep in one folder."""

    def __init__(self, folder: Path, plugins: Sequence[str] = ()) -> None:
        """`folder` exists; a job's own folder may not. `plugins`: names on the command line, for every job."""
        self.folder = folder
        self._plugins = plugins
        self.rows: list[JobResult] = []
        self.stopped_by: int | None = None
        """Number of the signal that ends the sweep."""
        self._child: subprocess.Popen[bytes] | None = None

    def interrupt(self, number: int) -> None:
        """Pass a signal on to the running job, which saves and ends; start no other. A second one ends it at once."""
        self.stopped_by = number
        if self._child is not None:
            self._child.send_signal(number)

    def run(self, job: int, words: list[str], compose: Compose) -> JobResult:
        """Run one job to its end, however it ends, and write its row."""
        text = " ".join(words)
        if self.stopped_by is not None:
            row = JobResult(job, words, "interrupted", 128 + self.stopped_by, "not started: the sweep was stopped", {})
        else:
            print(f"[job {job}] {text}", flush=True)
            row = self._run(job, words, compose)
        self.rows.append(row)
        write_text(self.folder / "sweep.jsonl", as_jsonl(self.rows))
        write_text(self.folder / "sweep.md", as_markdown(self.rows))
        print(f"[job {job}] {row.status}{row.summary}", flush=True)
        if row.status != "ok":
            print(f"trainer4090: job {job} ({text}) {row.status}: {row.reason}", file=sys.stderr, flush=True)
        return row

    def _run(self, job: int, words: list[str], compose: Compose) -> JobResult:
        folder = self.folder / str(job)
        try:
            spec = self._spec(folder, words, compose)
            write_text(folder / "plan.txt", plan_of(spec).describe() + "\n")
        except TrainerError as error:
            code, reason = exit_code_of(error), "; ".join(map(str, error.problems))
            if folder.is_dir():
                write_json(folder / "result.json", _result("failed", code, lines_of(error)))
            return JobResult(job, words, "failed", code, reason, {})
        if spec.root.task == "plan":
            write_json(folder / "result.json", _result("ok", 0, []))
            return JobResult(job, words, "ok", 0, "", {})
        code, errors = self._spawn(folder)
        return self._row(job, words, code, errors, _read(folder / "result.json"))

    def _spec(self, folder: Path, words: list[str], compose: Compose) -> RunSpec:
        """The job's spec, saved in its new folder with the words that made it."""
        placed = [*words, overrides.text_override("run.dir", str(folder))]
        spec = parse.parse(settle(compose(placed)).tree)
        run_folder.claim(folder)
        write_text(folder / "spec.yaml", dump(spec))
        write_text(folder / "overrides.txt", resume.overrides_text(words))
        return spec

    def _spawn(self, folder: Path) -> tuple[int, str]:
        """Exit code (negative: the signal that killed it) and stderr of the job's process."""
        errors = folder / "stderr.log"
        with errors.open("wb") as stderr:
            # A session of its own: Ctrl-C reaches the job once, through us.
            words = [*command(folder), *self._plugins]
            child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
            self._child = child
            if self.stopped_by is not None:  # the signal came before there was a child to pass it on to
                child.send_signal(self.stopped_by)
            code = child.wait()
            self._child = None
        text = errors.read_text(encoding="utf-8", errors="replace")
        if not text:
            errors.unlink()
        return code, text

    def _row(self, job: int, words: list[str], code: int, errors: str, result: dict[str, Any]) -> JobResult:
        if code == 0:
            return JobResult(job, words, "ok", 0, "", result)
        status = result.get("status", "killed" if code < 0 else "failed")
        if self.stopped_by is not None and not result:
            # The process had not got as far as to handle a signal, or a second one ended it.
            return JobResult(job, words, "interrupted", 128 + self.stopped_by, "stopped, and nothing was saved", result)
        if code < 0:
            status = "killed"
        return JobResult(job, words, status, 128 - code if code < 0 else code, _reason(code, errors), result)


def _result(status: str, code: int, problems: list[str]) -> dict[str, Any]:
    """Content of `result.json` of a job that had no process."""
    return {"status": status, "exit_code": code, "steps": 0, "eval": {}} | ({"problems": problems} if problems else {})


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}  # the process ended before it could write one; its exit code says how


def _reason(code: int, errors: str) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    ours = [line.partition(": ")[2] for line in errors.splitlines() if line.startswith("trainer4090: ")]
    last = errors.strip().splitlines()[-1:] or [f"exit {code}"]
    return "; ".join(ours or last)
