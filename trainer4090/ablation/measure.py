"""The processes of an ablation: every row in fresh ones, the rows in turn, and whatever is done is written down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from trainer4090 import run_folder, worker
from trainer4090.ablation import record
from trainer4090.ablation.record import FINAL, Measurement
from trainer4090.ablation.rows import Row, yardsticks_of
from trainer4090.disk import write_text
from trainer4090.errors import TrainerError
from trainer4090.spec import dump
from trainer4090.sweeps import child
from trainer4090.sweeps.child import Child

JSONL = "ablate.jsonl"
command = child.worker
"""What starts a process from the folder of its spec."""


@final
class Measuring:
    """Measures rows in a folder that the caller has locked."""

    def __init__(
        self,
        folder: Path,
        rows: Sequence[Row],
        repeats: int,
        plugins: Sequence[str],
        child: Child | None = None,
        compared: bool = True,
    ) -> None:
        """What an earlier start has measured of these rows there counts.

        `child`: starts the processes, where somebody else passes signals on. `compared`: the losses of the rows are
        compared with those of yardsticks, which are measured too.
        """
        self._folder = folder
        self._rows = list(rows)
        self._repeats = repeats
        self._plugins = list(plugins)
        self._child = child or Child()
        self.yardsticks = {row.digest: yardsticks_of(row, rows) for row in (rows if compared else ())}
        """Digest of a row -> the rows whose losses it is compared with."""
        known = {row.digest for row in (*rows, *self._others())}
        earlier = record.load(folder / JSONL)
        self.measurements = [each for each in earlier if each.digest in known and each.status in FINAL]

    @property
    def stopped_by(self) -> int | None:
        """Number of the signal that ended it."""
        return self._child.stopped_by

    def interrupt(self, number: int) -> None:
        """Pass a signal on to the present process, and start no other."""
        self._child.interrupt(number)

    def run(self, written: Callable[[], None]) -> None:
        """Measure what is not measured yet; `written` is called after every process."""
        for row, repeat in self._turns():
            if self.stopped_by is not None:
                return
            if self._needless(row, repeat):
                continue
            print(f"[{row.label}] process {repeat + 1}", flush=True)
            done = self._measured(row, repeat)
            if done.status == "interrupted" or (self.stopped_by is not None and done.status != "ok"):
                return
            self.measurements.append(done)
            write_text(self._folder / JSONL, record.as_jsonl(self.measurements))
            print(f"[{row.label}] {_told(done)}", flush=True)
            written()

    def of(self, row: Row) -> list[Measurement]:
        """All measurements of a row."""
        return [each for each in self.measurements if each.digest == row.digest]

    def _turns(self) -> Iterator[tuple[Row, int]]:
        """A B C, then what is no row, then A B C again: a card that warms up slows all rows alike."""
        for repeat in range(self._repeats):
            yield from ((row, repeat) for row in self._rows)
            if repeat == 0:
                yield from ((row, 0) for row in self._others(measured=True))

    def _others(self, measured: bool = False) -> list[Row]:
        """What is measured for its losses and is no row; of rows that run, with `measured`."""
        running = (
            {each.digest for each in self.measurements if each.status == "ok"} if measured else set(self.yardsticks)
        )
        sticks = [sticks for digest, sticks in self.yardsticks.items() if digest in running]
        wanted = {row.digest: row for each in sticks for row in (each.reference, each.twin)}
        return [row for digest, row in wanted.items() if digest not in self.yardsticks]

    def _needless(self, row: Row, repeat: int) -> bool:
        """Whether this turn is measured already, or an earlier one has shown that the row does not run."""
        return any(each.repeat == repeat or each.status != "ok" for each in self.of(row))

    def _measured(self, row: Row, repeat: int) -> Measurement:
        folder = self._folder / f"{run_folder.slug(row.label)}-{row.digest}" / str(repeat)
        shutil.rmtree(folder, ignore_errors=True)  # of a start that was ended in the middle
        try:
            ready = worker.prepare(row.spec)
        except TrainerError as error:
            return record.refused(row.digest, row.label, error)
        run_folder.claim(folder)
        write_text(folder / "spec.yaml", dump(replace(row.spec, run=replace(row.spec.run, dir=str(folder)))))
        write_text(folder / "plan.txt", ready.plan.describe() + "\n")
        environment = {**os.environ, "KINETO_LOG_LEVEL": "5"}  # the profiler greets on stderr
        words = [*command(folder), *self._plugins]
        ended = self._child.run(words, folder, row.spec.ablate.timeout_s, environment)
        return record.of_process(row.digest, row.label, repeat, ended, folder, row.spec.ablate.warm_up)


def _told(done: Measurement) -> str:
    """A measurement on the console."""
    speed = done.result.get("items_per_s")
    if done.status != "ok":
        return f"{done.status}: {done.reason}"
    return "ok" if speed is None else f"{speed:,.1f} items/s"
