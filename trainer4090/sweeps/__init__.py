"""Sweeps: one fresh process a job, and a table that is up to date after every one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from omegaconf import DictConfig

from trainer4090 import parse, resume, run_folder, timings, worker
from trainer4090.composition import overrides, settle
from trainer4090.disk import write_json, write_text
from trainer4090.errors import TrainerError, exit_code_of, lines_of
from trainer4090.plan import Plan
from trainer4090.spec import RunSpec, dump
from trainer4090.sweeps.child import Child, Ended, result_of
from trainer4090.sweeps.child import worker as worker_of
from trainer4090.sweeps.table import JobResult, as_jsonl, as_markdown

Compose = Callable[[Sequence[str]], DictConfig]
Settle = Callable[[Plan, Sequence[str], Child], Plan]
"""(plan, plugins, what starts processes) -> the plan with a value in place of every `measure`."""


def plan_of(spec: RunSpec) -> Plan:
    """The checked plan of a job: on a card by name for `task=plan`, else on a device of this machine.

    Raises:
        TrainerError: the job cannot be run.
    """
    return worker.planned(spec) if spec.root.task == "plan" else worker.prepare(spec).plan


def command(folder: Path, task: str = "train") -> list[str]:
    """What starts the process of a job from what is saved in its folder."""
    if task == "ablate":
        return [sys.executable, "-m", "trainer4090.ablation", str(folder), str(os.getpid())]
    return worker_of(folder)


@final
class Sweep:
    """The jobs of one sweep in one folder."""

    def __init__(self, folder: Path, settle: Settle, plugins: Sequence[str] = ()) -> None:
        """`folder` exists; a job's own folder may not. `plugins`: names on the command line, for every job."""
        self.folder = folder
        self._settle = settle
        self._plugins = plugins
        self.rows: list[JobResult] = []
        self._child = Child()

    @property
    def stopped_by(self) -> int | None:
        """Number of the signal that ends the sweep."""
        return self._child.stopped_by

    def interrupt(self, number: int) -> None:
        """Pass a signal on to the running job, which saves and ends; start no other. A second one ends it at once."""
        self._child.interrupt(number)

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
            self._plan(spec, folder)
        except TrainerError as error:
            code, reason = exit_code_of(error), "; ".join(map(str, error.problems))
            status = "failed" if self.stopped_by is None else "interrupted"
            if folder.is_dir():
                write_json(folder / "result.json", _result(status, code, lines_of(error)))
            return JobResult(job, words, status, code, reason, {})
        if spec.root.task == "plan":
            write_json(folder / "result.json", _result("ok", 0, []))
            return JobResult(job, words, "ok", 0, "", {})
        ended = self._child.run([*command(folder, spec.root.task), *self._plugins], folder)
        return self._row(job, words, ended, result_of(folder))

    def _spec(self, folder: Path, words: list[str], compose: Compose) -> RunSpec:
        """The job's spec, saved in its new folder with the words that made it."""
        placed = [*words, overrides.text_override("run.dir", str(folder))]
        spec = parse.parse(settle(compose(placed)).tree)
        run_folder.claim(folder)
        write_text(folder / "spec.yaml", dump(spec))
        write_text(folder / "overrides.txt", resume.overrides_text(words))
        return spec

    def _plan(self, spec: RunSpec, folder: Path) -> None:
        """Write the plan of the job, and what was measured for it, where its process reads that."""
        made = plan_of(spec)
        if spec.root.task != "ablate" and timings.wanted(spec):
            made = self._settle(made, self._plugins, self._child)
            write_text(folder / "spec.yaml", dump(made.spec))
            write_text(folder / timings.FILE, timings.as_text(made.evidence.timings))
        write_text(folder / "plan.txt", made.describe() + "\n")

    def _row(self, job: int, words: list[str], ended: Ended, result: dict[str, Any]) -> JobResult:
        if ended.code == 0:
            return JobResult(job, words, "ok", 0, "", result)
        if self.stopped_by is not None and not result:
            # The process had not got as far as to handle a signal, or a second one ended it.
            return JobResult(job, words, "interrupted", 128 + self.stopped_by, "stopped, and nothing was saved", result)
        status = "killed" if ended.code < 0 else result.get("status", "failed")
        return JobResult(job, words, status, ended.exit_code, ended.reason, result)


def _result(status: str, code: int, problems: list[str]) -> dict[str, Any]:
    """Content of `result.json` of a job that had no process."""
    return {"status": status, "exit_code": code, "steps": 0, "eval": {}} | ({"problems": problems} if problems else {})
