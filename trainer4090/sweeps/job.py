"""One job of a sweep, from its words to its row."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
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
from trainer4090.sweeps.table import JobResult

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
class Job:
    """Its folder is made by `prepare`, its process by `train`; a signal reaches either through `child`."""

    def __init__(self, number: int, words: Sequence[str], folder: Path, settle: Settle, plugins: Sequence[str]) -> None:
        """`words`: its own overrides. `plugins`: names on the command line of the sweep."""
        self.number = number
        self.words = list(words)
        self.child = Child()
        self._folder = folder
        self._settle = settle
        self._plugins = plugins

    def __str__(self) -> str:
        return " ".join(self.words)

    def read(self, compose: Compose) -> RunSpec:
        """The job's spec.

        Raises:
            TrainerError: its words are wrong together.
        """
        placed = [*self.words, overrides.text_override("run.dir", str(self._folder))]
        return parse.parse(settle(compose(placed)).tree)

    def prepare(self, spec: RunSpec) -> JobResult | None:
        """Make the folder with spec and plan; the row of a job that ends there."""
        try:
            run_folder.claim(self._folder)
            write_text(self._folder / "spec.yaml", dump(spec))
            write_text(self._folder / "overrides.txt", resume.overrides_text(self.words))
            self._plan(spec)
        except TrainerError as error:
            return self.refused(error)
        if spec.root.task == "plan":
            write_json(self._folder / "result.json", _result("ok", 0, []))
            return self._row("ok", 0, "", {})
        return None

    def _plan(self, spec: RunSpec) -> None:
        """Write the plan of the job, and what was measured for it, where its process reads that."""
        made = plan_of(spec)
        if spec.root.task != "ablate" and timings.wanted(spec):
            made = self._settle(made, self._plugins, self.child)
            write_text(self._folder / "spec.yaml", dump(made.spec))
            write_text(self._folder / timings.FILE, timings.as_text(made.evidence.timings))
        write_text(self._folder / "plan.txt", made.describe() + "\n")

    def train(self, spec: RunSpec, environment: Mapping[str, str]) -> JobResult:
        """Run the job's process with these variables to its end, however it ends."""
        words = [*command(self._folder, spec.root.task), *self._plugins]
        ended, stopped_by = self.child.run(words, self._folder, environment=environment), self.child.stopped_by
        result = result_of(self._folder)
        if ended.code == 0:
            return self._row("ok", 0, "", result)
        if stopped_by is not None and not result:
            # The process had not got as far as to handle a signal, or a second one ended it.
            return self._row("interrupted", 128 + stopped_by, "stopped, and nothing was saved", result)
        return self._row(_status(ended, result), ended.exit_code, ended.reason, result)

    def refused(self, error: TrainerError) -> JobResult:
        """The row of a job that has no process."""
        code, reason = exit_code_of(error), "; ".join(map(str, error.problems))
        status = "failed" if self.child.stopped_by is None else "interrupted"
        if self._folder.is_dir():
            write_json(self._folder / "result.json", _result(status, code, lines_of(error)))
        return self._row(status, code, reason, {})

    def not_started(self, signal_number: int) -> JobResult:
        """The row of a job that a signal to the sweep was before."""
        return self._row("interrupted", 128 + signal_number, "not started: the sweep was stopped", {})

    def _row(self, status: str, code: int, reason: str, result: dict[str, Any]) -> JobResult:
        return JobResult(self.number, self.words, status, code, reason, result)


def _status(ended: Ended, result: dict[str, Any]) -> str:
    return "killed" if ended.code < 0 else result.get("status", "failed")


def _result(status: str, code: int, problems: list[str]) -> dict[str, Any]:
    """Content of `result.json` of a job that had no process."""
    return {"status": status, "exit_code": code, "steps": 0, "eval": {}} | ({"problems": problems} if problems else {})
