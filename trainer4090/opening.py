"""What reports a run: its sinks and its log points. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer4090 import device
from trainer4090.build import Run
from trainer4090.data.pipeline.workers import num_processes
from trainer4090.log_point import LogPoints
from trainer4090.plan import Plan
from trainer4090.report import Reporter, open_report, silent_report
from trainer4090.report.nvml import open_sampler
from trainer4090.spec import dump, to_tree


@dataclass(frozen=True)
class Occasion:
    """A start of a run."""

    plan: Plan
    chosen: device.Choice
    folder: Path
    start_step: int
    live: bool
    """A progress bar where there is a terminal."""


def reporter_of(occasion: Occasion, used: torch.device, leads: bool) -> Reporter:
    """The reporter of a start, which has said what is planned and where; one that says nothing on a rank behind."""
    if not leads:
        return silent_report()
    plan, folder = occasion.plan, occasion.folder
    described = plan.describe()
    reporter = open_report(
        folder=folder,
        start_step=occasion.start_step,
        total_steps=plan.horizon.total,
        hyperparameters=to_tree(plan.spec),
        texts={"spec": dump(plan.spec), "plan": described},
        live=occasion.live,
        eval_tags=plan.evaluation.tags,
    )
    where = f"device: {used} ({occasion.chosen.reason})", f"run: {folder}"
    for line in (*described.splitlines(), *where, *_automatic_workers(plan)):
        reporter.notice(line)
    return reporter


def log_points(
    occasion: Occasion, built: Run, reporter: Reporter, closers: list[Callable[[], None]] | None
) -> LogPoints:
    """Log points that go to `reporter`; `closers` gets what has to be closed with it, None reads no GPU."""
    plan, uuid = occasion.plan, occasion.chosen.uuid
    per_sample, per_item = built.flops_per_sample, plan.evidence.data.items_per_sample
    flops = None if per_sample is None else per_sample / per_item
    peak = plan.card.peak_tflops(plan.precision.arithmetic, plan.precision.accumulation)
    peak = None if peak is None else peak * plan.degrees.ranks
    if uuid is None or closers is None:
        return LogPoints(reporter, built.device, flops, peak, dict)
    sampler = open_sampler(uuid, reporter.notice)
    closers.append(sampler.close)
    return LogPoints(reporter, built.device, flops, peak, sampler.values)


def _automatic_workers(plan: Plan) -> list[str]:
    wanted = plan.spec.data.config.num_workers
    return [f"data.num_workers: auto is {num_processes(wanted)} here"] if wanted == "auto" else []
