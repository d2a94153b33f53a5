"""Host cost of an update over the same loop written by hand: an MLP at batch 256 on the CPU, TensorBoard on.

    python -m benchmarks.overhead

The two loops take turns in one process, ten updates each, so a slow phase of the machine meets both. Seven runs of our
loop give seven figures, and the exit code is 1 when their median is above 100 microseconds. Then the same is done with
a sleep of 1 ms an update put into our loop, which has to exceed the limit: a benchmark that cannot fail measures
nothing. Where the user may (root), nothing else runs on the processor that this one uses.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import final

import torch
from torch.nn import functional

from trainer4090 import loop, plan, rules
from trainer4090.build import Run, build
from trainer4090.card import CPU
from trainer4090.composition import compose
from trainer4090.log_point import LogPoints
from trainer4090.parse import parse
from trainer4090.report import Reporter, open_report
from trainer4090.signals import StopRequest
from trainer4090.spec import to_tree

LIMIT_US = 100.0
NUM_PAIRS = 7
NUM_UPDATES = 800
"""Updates of a pair, on either side."""
WINDOW = 10
"""Updates of a turn, and of a log point: the default of `train.log_every`."""
BATCH_SIZE = 256
WORDS = (
    "model=mlp",
    "model.hidden=[64,64]",  # so that the host's work, not the matrix products, is what is timed
    "data=synthetic_images",
    "data.channels=1",
    "data.height=28",
    "data.width=28",
    "data.num_classes=10",
    "data.num_train=60000",
    "data.pool_size=60000",
    "data.num_evaluation=1000",
    f"train.batch_size={BATCH_SIZE}",
    f"train.steps={NUM_UPDATES}",
    f"train.log_every={WINDOW}",
    "train.epochs=null",
    "train.eval_every=1000000",
    "train.checkpoint_every=1000000",
    "schedule=constant",
    "device=cpu",
)


def prepared_run() -> Run:
    """The run of `WORDS`, built as the worker builds it."""
    spec = parse(compose(WORDS).tree)
    made = plan.make(spec, CPU, plan.gather(spec))
    rules.check(made)
    return build(made, torch.device("cpu"), print)


def slowed(run: Run, seconds: float) -> Run:
    """`run` with a sleep in every update."""

    def count(targets: torch.Tensor) -> int:
        time.sleep(seconds)
        return run.loss.count(targets)

    return replace(run, loss=replace(run.loss, count=count))


def by_hand(run: Run) -> Iterator[None]:
    """The loop that one would write: same model, data, loss and kind of optimizer. A turn after each `next`."""
    module = run.executor.forward.module
    images, labels = run.data.train.fetch(torch.arange(len(run.data.train)), -1)
    decayed = [parameter for parameter in module.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in module.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.0005}, {"params": plain}]
    optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9)
    num_updates = 0
    while True:
        order = torch.randperm(len(labels))
        for begin in range(0, len(labels), BATCH_SIZE):
            chosen = order[begin : begin + BATCH_SIZE]
            inputs, targets = run.data.prepare(images.index_select(0, chosen)), labels.index_select(0, chosen)
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(module(inputs), targets)
            loss.backward()
            optimizer.step()
            num_updates += 1
            if num_updates % WINDOW == 0:
                yield


@final
class Clock:
    """The wall clock, standing while this thread could run but another program has its processor."""

    def __init__(self) -> None:
        """Belongs to the thread that makes it. It never stands where the system keeps no such statistics."""
        path = Path("/proc/thread-self/schedstat")
        self._statistics = path.open("rb", buffering=0) if path.exists() else None

    def seconds(self) -> float:
        """Seconds from an arbitrary point; sleeping and waiting for a disk are counted."""
        if self._statistics is None:
            return time.perf_counter()
        self._statistics.seek(0)
        _, waited_ns, _ = self._statistics.read().split()
        return time.perf_counter() - int(waited_ns) * 1e-9

    def close(self) -> None:
        """Gives the statistics back."""
        if self._statistics is not None:
            self._statistics.close()


def take_precedence() -> None:
    """Let no ordinary program interrupt this thread, if the user may: caches that others filled double every cost."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        print("other programs may interrupt this one (no right to SCHED_FIFO): expect larger figures")


@final
class Turns:
    """A place for numbers that lets the hand-written loop run at every log point, and takes the time of both.

    What lies between two of its turns is ours: ten updates with their log point, every other sink included.
    """

    def __init__(self, other: Iterator[None]) -> None:
        """`other` makes its next `WINDOW` updates when it is advanced."""
        self.marks: list[tuple[float, float]] = []
        """Start and end of each turn of `other`, in seconds."""
        self._other = other
        self._clock = Clock()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Gives the turn away and gets it back."""
        start = self._clock.seconds()
        next(self._other)
        self.marks.append((start, self._clock.seconds()))

    def close(self, final: Mapping[str, float]) -> None:
        """Closes the clock."""
        self._clock.close()


@dataclass(frozen=True)
class Pair:
    """Medians over the windows of one run, in microseconds an update: they leave out what other programs took."""

    ours: float
    by_hand: float
    difference: float
    """Of neighbouring windows, which a slow phase meets alike."""


def measured(run: Run) -> Pair:
    """One pair: everything that reports is in it; the evaluation and the save at the end are not."""
    turns = Turns(by_hand(run))
    with tempfile.TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        folder, texts = Path(name), {"plan": run.plan.describe()}
        files = open_report(folder, 0, NUM_UPDATES, to_tree(run.plan.spec), texts, live=False)
        reporter = Reporter((files, turns), files.notice)
        points = LogPoints(reporter, run.device, run.flops_per_sample, None, dict)
        loop.train(run, folder, points, loop.Progress(), StopRequest())
        reporter.close({})
    turns.marks.pop()  # the last log point is written behind the evaluation
    windows = [
        ((start - before) * 1e6 / WINDOW, (end - start) * 1e6 / WINDOW)
        for (_, before), (start, end) in pairwise(turns.marks)
    ]
    ours, other = zip(*windows, strict=True)
    difference = statistics.median(mine - theirs for mine, theirs in windows)
    return Pair(statistics.median(ours), statistics.median(other), difference)


def overhead_us(run: Run) -> float:
    """Median over the pairs of the difference, in microseconds an update; each pair is printed."""
    differences = []
    for number in range(1, NUM_PAIRS + 1):
        pair = measured(run)
        differences.append(pair.difference)
        times = f"ours {pair.ours:8.1f} us, by hand {pair.by_hand:8.1f} us, overhead {pair.difference:7.1f} us"
        print(f"pair {number}: {times}")
    median = statistics.median(differences)
    print(f"median overhead {median:.1f} us an update, from {min(differences):.1f} to {max(differences):.1f}")
    return median


def main() -> int:
    """Print the pairs; 0 when the overhead is within the limit and that of the slowed loop is not."""
    torch.set_num_threads(1)
    take_precedence()
    run = prepared_run()
    measured(run)  # warm-up of allocator and caches
    print(f"limit: {LIMIT_US:.0f} us an update")
    honest = overhead_us(run)
    print("with 1 ms of sleep an update, which has to exceed the limit:")
    handicapped = overhead_us(slowed(run, 0.001))
    return 0 if honest <= LIMIT_US < handicapped else 1


if __name__ == "__main__":
    sys.exit(main())
