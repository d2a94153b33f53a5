"""Host cost of an update over the same loop written by hand: an MLP at batch 256 on the CPU, TensorBoard on.

    python -m benchmarks.overhead

runs both in turn, seven pairs, and ends with exit 1 when the median difference is above 100 microseconds. Then it
does the same with a sleep of 1 ms an update put into our loop, which has to exceed the limit: a benchmark that cannot
fail measures nothing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional

from trainer4090 import loop, plan, rules
from trainer4090.build import Run, build
from trainer4090.card import CPU
from trainer4090.composition import compose
from trainer4090.log_point import LogPoints
from trainer4090.parse import parse
from trainer4090.records import Batch
from trainer4090.report import open_report
from trainer4090.report.speed import Window
from trainer4090.signals import StopRequest
from trainer4090.spec import to_tree

LIMIT_US = 100.0
NUM_PAIRS = 7
NUM_UPDATES = 400
WINDOW = 10
"""Updates of a window, the default of `train.log_every`; a median over windows leaves out what other programs took."""
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


def ours_us(run: Run, handicap_s: float) -> float:
    """Microseconds an update of our loop, everything that reports included; evaluation and the last save are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reporter = open_report(
            folder, 0, NUM_UPDATES, to_tree(run.plan.spec), {"plan": run.plan.describe()}, live=False
        )
        points = LogPoints(reporter, run.device, run.flops_per_sample, None, dict)
        slowed = _slowed(run, handicap_s)
        loop.train(slowed, folder, points, loop.Progress(), StopRequest())
        reporter.close({})
        windows: list[Window] = points.windows
    return 1000 * statistics.median(window.elapsed_ms / window.num_updates for window in windows)


def _slowed(run: Run, handicap_s: float) -> Run:
    if not handicap_s:
        return run

    class Slow:
        forward, average = run.executor.forward, run.executor.average
        state_dict = staticmethod(run.executor.state_dict)

        @staticmethod
        def step(batch: Batch, observe: bool) -> object:
            time.sleep(handicap_s)
            return run.executor.step(batch, observe)

    return Run(run.plan, run.device, run.data, run.loss, Slow(), run.flops_per_sample)  # type: ignore[arg-type]


def by_hand_us(run: Run) -> float:
    """Microseconds an update of the loop that one would write: same model, data, loss and optimizer."""
    module = run.executor.forward.module
    images, labels = run.data.train.fetch(torch.arange(len(run.data.train)), -1)
    decayed = [parameter for parameter in module.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in module.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.0005}, {"params": plain}]
    optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9)
    order, begin = torch.randperm(len(labels)), 0
    marks = [time.perf_counter()]
    for update in range(1, NUM_UPDATES + 1):
        if begin >= len(labels):
            order, begin = torch.randperm(len(labels)), 0
        chosen = order[begin : begin + BATCH_SIZE]
        begin += BATCH_SIZE
        inputs, targets = run.data.prepare(images.index_select(0, chosen)), labels.index_select(0, chosen)
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        if update % WINDOW == 0:
            marks.append(time.perf_counter())
    return 1e6 * statistics.median(end - start for start, end in pairwise(marks)) / WINDOW


def difference_us(run: Run, handicap_s: float, report: Callable[[str], None]) -> float:
    """Median over pairs of (ours - by hand), in microseconds an update; the order alternates inside the pairs."""
    differences = []
    for pair in range(NUM_PAIRS):
        if pair % 2:
            by_hand, ours = by_hand_us(run), ours_us(run, handicap_s)
        else:
            ours, by_hand = ours_us(run, handicap_s), by_hand_us(run)
        differences.append(ours - by_hand)
        report(f"pair {pair + 1}: ours {ours:8.1f} us, by hand {by_hand:8.1f} us, difference {ours - by_hand:7.1f} us")
    return statistics.median(differences)


def main() -> int:
    """Print the table; 0 when the overhead is within the limit and the handicapped loop is not."""
    torch.set_num_threads(1)
    run = prepared_run()
    ours_us(run, 0.0)  # warm-up of allocator and caches
    by_hand_us(run)
    honest = difference_us(run, 0.0, print)
    print(f"median overhead {honest:.1f} us an update (limit {LIMIT_US:.0f})")
    slowed = difference_us(run, 0.001, lambda line: None)
    print(f"with 1 ms of sleep an update: {slowed:.1f} us (has to exceed the limit)")
    return 0 if honest <= LIMIT_US < slowed else 1


if __name__ == "__main__":
    sys.exit(main())
