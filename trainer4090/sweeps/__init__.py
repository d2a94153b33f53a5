"""Sweeps: one fresh process a job, as many at once as there are cards, and a table that is true after every job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import final

from trainer4090 import card, device
from trainer4090.disk import write_text
from trainer4090.errors import TrainerError
from trainer4090.parallelism import degrees
from trainer4090.spec import RunSpec
from trainer4090.sweeps.cards import Cards
from trainer4090.sweeps.job import Compose, Job, Settle
from trainer4090.sweeps.table import JobResult, as_jsonl, as_markdown


@final
class Sweep:
    """The jobs of one sweep in one folder."""

    def __init__(self, folder: Path, settle: Settle, plugins: Sequence[str] = ()) -> None:
        """`folder` exists; a job's own folder may not. `plugins`: names on the command line, for every job."""
        self.folder = folder
        self.stopped_by: int | None = None
        """Number of the signal that ends the sweep."""
        self._settle = settle
        self._plugins = plugins
        self._cards = Cards(device.visible(card.present_gpus()))
        self._jobs: list[Job] = []
        """Those that have begun."""
        self._rows: dict[int, JobResult] = {}
        self._writing = Lock()

    @property
    def rows(self) -> list[JobResult]:
        """Of the jobs that have ended, in the order of the jobs."""
        return [row for _, row in sorted(self._rows.items())]

    def interrupt(self, number: int) -> None:
        """Pass a signal on to the running jobs, which save and end; start no other. A second one ends them at once."""
        self.stopped_by = number
        for job in tuple(self._jobs):
            job.child.interrupt(number)

    def run(self, jobs: Sequence[tuple[int, Sequence[str]]], compose: Compose) -> list[JobResult]:
        """Run jobs, given by number and words, to their ends, however they end; their rows.

        They are read and get their cards here, one after the other. A thread then waits for the process of each.
        """
        with ThreadPoolExecutor(self._cards.most_jobs) as pool:
            waiting: list[Future[None]] = []
            for number, words in jobs:
                job = Job(number, words, self.folder / str(number), self._settle, self._plugins)
                waiting += self._begun(job, compose, pool)
        for ended in waiting:
            ended.result()
        return [self._rows[number] for number, _ in jobs]

    def _begun(self, job: Job, compose: Compose, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """The end of the job's process, when it has one."""
        if self.stopped_by is not None:
            self._record(job, job.not_started(self.stopped_by))
            return []
        try:
            spec = job.read(compose)
        except TrainerError as error:
            print(f"[job {job.number}] {job}", flush=True)
            self._record(job, job.refused(error))
            return []
        places = self._cards.take(spec.root.device, _num_cards(spec))
        self._jobs.append(job)
        if self.stopped_by is not None:  # while it waited for a card
            self._cards.give(places)
            self._record(job, job.not_started(self.stopped_by))
            return []
        on = self._cards.names(places)
        print(f"[job {job.number}] {job}{on and f' on {on}'}", flush=True)
        with self._cards.only(spec.root.device, places) as environment:
            row = job.prepare(spec)
        if row is None:
            return [pool.submit(self._train, job, spec, places, environment)]
        self._cards.give(places)
        self._record(job, row)
        return []

    def _train(self, job: Job, spec: RunSpec, places: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            row = job.train(spec, environment)
        finally:
            self._cards.give(places)
        self._record(job, row)

    def _record(self, job: Job, row: JobResult) -> None:
        """Write the row, and say it."""
        with self._writing:
            self._rows[job.number] = row
            write_text(self.folder / "sweep.jsonl", as_jsonl(self.rows))
            write_text(self.folder / "sweep.md", as_markdown(self.rows))
            print(f"[job {job.number}] {row.status}{row.summary}", flush=True)
            if row.status != "ok":
                says = f"trainer4090: job {job.number} ({job}) {row.status}: {row.reason}"
                print(says, file=sys.stderr, flush=True)


def _num_cards(spec: RunSpec) -> int:
    """Cards that the job trains on."""
    wanted = device.count(spec.root.device) if spec.root.cards == "auto" else spec.root.cards
    return degrees(spec.parallelism.name, spec.parallelism.config, wanted).ranks
