"""Host cost of an update over the same loop written by hand: an MLP at batch 256, TensorBoard on.

    python -m benchmarks.overhead [--device cpu|cuda] [--kernels eager|graph]

The two loops take turns in one process, ten updates each, so a slow phase of the machine meets both. Seven runs of our
loop give seven figures, and the exit code is 1 when their median is above 100 microseconds on a CPU, 20 beside a GPU.
Then the same is done with a sleep of 1 ms an update put into our loop, which has to exceed the limit: a benchmark that
cannot fail measures nothing. Where the user may (root), nothing else runs on the processor that this one uses.

A GPU is idle when a turn begins, and its queue has room for ten updates: the host's time is what is taken, however long
the device computes. With `graph` both loops replay a captured update.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import final

import torch
from torch.nn import functional

from benchmarks.gpu.loops import captured
from trainer4090 import device, loop, plan, rules
from trainer4090.build import Run, build
from trainer4090.composition import compose
from trainer4090.log_point import LogPoints
from trainer4090.parse import parse
from trainer4090.process import torch_device
from trainer4090.report import Reporter, open_report
from trainer4090.signals import StopRequest
from trainer4090.spec import to_tree

LIMITS_US = {"cpu": 100.0, "cuda": 20.0}
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
)


def prepared_run(*words: str) -> Run:
    """The run of `WORDS` and `words`, built as the worker builds it."""
    spec = parse(compose((*WORDS, *words)).tree)
    chosen = device.choose(spec.root.device, None)
    made = plan.make(spec, chosen.card, plan.gather(spec))
    rules.check(made)
    return build(made, torch_device(chosen, spec.root.memory_cap_gib), print)


def slowed(run: Run, seconds: float) -> Run:
    """`run` with a sleep in every update."""

    def count(targets: torch.Tensor) -> int:
        time.sleep(seconds)
        return run.loss.count(targets)

    return replace(run, loss=replace(run.loss, count=count))


def by_hand(run: Run) -> Iterator[None]:
    """The loop that one would write: same model, data, loss and kind of optimizer. A turn after each `next`."""
    images, labels = run.data.train.fetch(torch.arange(len(run.data.train)), -1)
    make = replayed_by_hand if run.plan.kernels.graph and run.device.type == "cuda" else updated_by_hand
    update = make(run, images, labels)
    num_updates = 0
    while True:
        order = torch.randperm(len(labels), device=run.device)
        for begin in range(0, len(labels) - BATCH_SIZE + 1, BATCH_SIZE):
            update(order[begin : begin + BATCH_SIZE])
            num_updates += 1
            if num_updates % WINDOW == 0:
                yield


def update_of(
    run: Run,
) -> tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], torch.optim.Optimizer]:
    """An update from a batch in plain torch, and the optimizer that it steps."""
    module = run.executor.forward.module
    decayed = [parameter for parameter in module.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in module.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.0005}, {"params": plain}]
    optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9)

    def update(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs = run.data.prepare(inputs)
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update, optimizer


def updated_by_hand(run: Run, images: torch.Tensor, labels: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """An update with the samples of the given indices."""
    make, _ = update_of(run)
    return lambda chosen: make(images.index_select(0, chosen), labels.index_select(0, chosen))


def replayed_by_hand(run: Run, images: torch.Tensor, labels: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """The same, captured; the samples are gathered where the graph reads them."""
    inputs, targets = images[:BATCH_SIZE].clone(), labels[:BATCH_SIZE].clone()
    make, optimizer = update_of(run)
    replay = captured(lambda: make(inputs, targets), optimizer)

    def update(chosen: torch.Tensor) -> None:
        torch.index_select(images, 0, chosen, out=inputs)
        torch.index_select(labels, 0, chosen, out=targets)
        replay()

    return update


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


@dataclass(frozen=True)
class Turn:
    """A turn of the hand-written loop, in seconds of the clock."""

    ours_ended: float
    begun: float
    ended: float
    ours_begun: float


@final
class Turns:
    """A place for numbers that lets the hand-written loop run at every log point, and takes the time of both.

    What lies between two of its turns is ours: ten updates with their log point, every other sink included.
    """

    def __init__(self, other: Iterator[None], settle: Callable[[], None]) -> None:
        """`other` makes its next `WINDOW` updates when it is advanced; `settle` waits for what the device has to do."""
        self.marks: list[Turn] = []
        self._other = other
        self._settle = settle
        self._clock = Clock()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Gives the turn away and gets it back."""
        ours_ended = self._clock.seconds()
        self._settle()
        begun = self._clock.seconds()
        next(self._other)
        ended = self._clock.seconds()
        self._settle()
        self.marks.append(Turn(ours_ended, begun, ended, self._clock.seconds()))

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
    settle = torch.cuda.synchronize if run.device.type == "cuda" else lambda: None
    turns = Turns(by_hand(run), settle)
    with tempfile.TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        folder, texts = Path(name), {"plan": run.plan.describe()}
        files = open_report(folder, 0, NUM_UPDATES, to_tree(run.plan.spec), texts, live=False)
        reporter = Reporter((files, turns), files.notice)
        points = LogPoints(reporter, run.device, run.flops_per_sample, None, dict)
        loop.train(run, folder, points, loop.Progress(), StopRequest())
        reporter.close({})
    turns.marks.pop()  # the last log point is written behind the evaluation
    windows = [
        ((turn.ours_ended - before.ours_begun) * 1e6 / WINDOW, (turn.ended - turn.begun) * 1e6 / WINDOW)
        for before, turn in pairwise(turns.marks)
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=LIMITS_US, default="cpu")
    parser.add_argument("--kernels", choices=("eager", "graph"), default="eager")
    options = parser.parse_args()
    limit_us = LIMITS_US[options.device]
    torch.set_num_threads(1)
    take_precedence()
    run = prepared_run(f"device={options.device}", f"kernels={options.kernels}")
    measured(run)  # warm-up of allocator and caches
    print(f"limit: {limit_us:.0f} us an update")
    honest = overhead_us(run)
    print("with 1 ms of sleep an update, which has to exceed the limit:")
    handicapped = overhead_us(slowed(run, 0.001))
    return 0 if honest <= limit_us < handicapped else 1


if __name__ == "__main__":
    sys.exit(main())
