"""Updates that are made to be measured: a row of an ablation. Imports torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from trainer4090 import loop, signals
from trainer4090.build import Run
from trainer4090.executors.witness import Witness
from trainer4090.log_point import LogPoints
from trainer4090.signals import StopRequest


def measure(run: Run, points: LogPoints, progress: loop.Progress, stop: StopRequest) -> Callable[[], dict[str, Any]]:
    """Make the plan's updates, and more until there is enough time; what `result.json` holds of the warm-up.

    Nothing happens beside updates and log points: no evaluation, no checkpoint file. Windows are counted from the end
    of the warm-up on, where one of them is cut.

    Raises:
        InterruptedRunError: a signal came.
        NonFiniteError: an observed loss is not finite.
    """
    wish = run.plan.spec.ablate
    _disturb(run, wish.noise)
    witness: Any = Witness(run.executor, list(run.executor.forward.module.parameters()), wish.warm_up)
    witnessed = replace(run, executor=witness)
    with closing(loop.batches_from(run, progress.position)) as batches:
        stop.defer()
        points.begin()
        end_s = math.inf
        while not _over(run, progress, end_s):
            if stop.signal_number is not None:
                raise signals.while_measuring(stop.signal_number)
            loop.next_update(witnessed, batches, points, progress)
            if progress.step == wish.warm_up:
                points.pause()
                points.settle()
                points.windows.clear()
                points.resume()
                end_s = time.monotonic() + wish.seconds
    points.settle()
    return witness.result


def _disturb(run: Run, noise: float) -> None:
    """Multiply every parameter by 1 + `noise` times a normal number, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in run.executor.forward.module.parameters() if noise else ():
            factors = 1 + noise * torch.randn(parameter.shape, generator=generator)
            parameter.mul_(factors.to(parameter))


def _over(run: Run, progress: loop.Progress, end_s: float) -> bool:
    """Whether a log point is reached, enough updates are made, and enough time went by."""
    at_log_point = progress.step % run.plan.spec.train.log_every == 0
    return at_log_point and progress.step >= run.plan.horizon.total and time.monotonic() >= end_s
