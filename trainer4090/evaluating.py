"""Evaluation, of which every rank makes a share. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import final

import torch

from trainer4090.beats import EVALUATES
from trainer4090.build import Run
from trainer4090.data import Source, Split
from trainer4090.data.pipeline.loader import evaluation_batches
from trainer4090.data.pipeline.share import Share
from trainer4090.data.pipeline.workers import num_processes
from trainer4090.metrics import Mean, Metric
from trainer4090.ranks import Ranks
from trainer4090.records import Batch, Loss

SAMPLES_WORTH_WORKERS = 512
"""Files from which an evaluation starts worker processes: that takes half a second, 512 photos one to ten."""


def evaluate(run: Run, split: Split = "evaluation") -> dict[str, float]:
    """Loss and metrics over every sample of a split, without augmentation, with averaged parameters if there are some.

    Nothing is read from the device before the end; sums are in fp64, so the batch size does not show. A metric that is
    no finite number here (an average precision without a positive) is absent.
    """
    forward = run.executor.forward
    tally = _Tally(run.loss, run.plan.evaluation.metrics, run.ranks)
    num_turns = -(-len(_source(run, split)) // (run.plan.evaluation_batch * run.ranks.size))
    with run.executor.evaluating(), closing(_samples(run, split)) as batches:
        for batch in batches:
            run.ranks.mark(EVALUATES, slow=True)
            inputs, targets = forward.place(batch)
            tally.add(forward(inputs), targets, batch.num_targets)
            num_turns -= 1
    if num_turns:
        tally.skip()
    return tally.values()


def _samples(run: Run, split: Split) -> Generator[Batch, None, None]:
    source = _source(run, split)
    in_process = run.plan.evidence.data.in_memory or len(source) < SAMPLES_WORTH_WORKERS
    return evaluation_batches(
        source=source,
        count_targets=run.loss.count,
        batch_size=run.plan.evaluation_batch,
        num_workers=0 if in_process else num_processes(run.plan.spec.data.config.num_workers),
        pin=run.device.type == "cuda",
        share=Share(run.ranks.rank, run.ranks.size, stride=run.plan.evaluation_batch),
    )


def _source(run: Run, split: Split) -> Source:
    return run.data.train if split == "train" else run.data.evaluation


@final
class _Tally:
    """Sums of the loss and of metrics; nothing is read from the device before the end.

    Sums of ranks are added up. A metric that is no mean over targets gets every output, in the order of the samples,
    on rank 0.
    """

    def __init__(self, loss: Loss, metrics: Sequence[Metric], ranks: Ranks) -> None:
        """Nothing is counted yet."""
        self._functions = {"loss": loss.total, **loss.metrics}
        self._totals: dict[str, torch.Tensor] = {}
        self._num_targets = 0
        chosen = {metric.name: metric.start() for metric in metrics}
        self._names = list(chosen)
        self._means = {name: each for name, each in chosen.items() if isinstance(each, Mean)}
        self._others = {name: each for name, each in chosen.items() if name not in self._means}
        self._ranks = ranks

    def add(self, outputs: torch.Tensor, targets: torch.Tensor, num_targets: int) -> None:
        """Take in a batch of this rank."""
        for name, function in self._functions.items():
            self._totals[name] = self._totals.get(name, 0) + function(outputs, targets).double()
        self._num_targets += num_targets
        for mean in self._means.values():
            mean.update(outputs, targets)
        if self._others:
            self._exchange((outputs, targets))

    def skip(self) -> None:
        """Take part in a turn in which other ranks have a batch and this one has none."""
        if self._others:
            self._exchange(None)

    def _exchange(self, own: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        for outputs, targets in self._ranks.in_order(own):
            for accumulator in self._others.values():
                accumulator.update(outputs, targets)

    def values(self) -> dict[str, float]:
        """Loss and metrics over all samples, the same on every rank; a metric that is no finite number is absent."""
        sums = [float(self._totals.get(name, 0.0)) for name in self._functions] + [float(self._num_targets)]
        sums += [number for mean in self._means.values() for number in mean.sums()]
        sums = self._ranks.sums(sums)
        return self._ranks.shared(lambda: self._finished(sums))

    def _finished(self, sums: list[float]) -> dict[str, float]:
        num_values = len(self._functions)
        num_targets = max(sums[num_values], 1.0)
        values = {name: total / num_targets for name, total in zip(self._functions, sums, strict=False)}
        pairs = iter(sums[num_values + 1 :])
        found = {name: mean.of_sums(next(pairs), next(pairs)) for name, mean in self._means.items()}
        found |= {name: accumulator.result() for name, accumulator in self._others.items()}
        values |= {name: found[name] for name in self._names}
        return {name: value for name, value in values.items() if name == "loss" or math.isfinite(value)}
