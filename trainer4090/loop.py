"""Training and evaluation: flat functions that decide when something happens. Where numbers go is report's part."""

from __future__ import annotations

import math
import random
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer4090 import checkpoint_file
from trainer4090.build import Run
from trainer4090.data.pipeline.loader import Position, evaluation_batches, training_batches
from trainer4090.log_point import LogPoints, non_finite
from trainer4090.report import Reporter
from trainer4090.signals import StopRequest
from trainer4090.spec import to_tree

STATE_FORMAT = 1


@dataclass
class Progress:
    """Where a run stands; the loop moves it and a checkpoint file keeps it."""

    step: int = 0
    """Updates that were attempted."""
    position: Position = field(default_factory=lambda: Position(0, 0))
    evaluation: dict[str, float] = field(default_factory=dict)
    """The newest evaluation."""
    best: dict[str, Any] | None = None
    """`step` and `eval` of the lowest evaluation loss."""


def train(run: Run, folder: Path, reporter: Reporter, points: LogPoints, progress: Progress, stop: StopRequest) -> None:
    """Train from `progress` to the end of the plan, or to the first update after a stop signal; saved either way.

    Raises:
        NonFiniteError: the loss is not finite; nothing is saved after that.
    """
    spec, total = run.plan.spec, run.plan.horizon.total
    eval_every = spec.train.eval_every or run.plan.horizon.per_epoch
    save_every = spec.train.checkpoint_every or run.plan.horizon.per_epoch
    with closing(_batches(run, progress.position)) as batches:
        stop.defer()
        points.begin()
        stopping = False
        while progress.step < total and not stopping:
            asked = time.perf_counter()
            batch, progress.position = next(batches)
            waited = time.perf_counter() - asked
            progress.step += 1
            observe = progress.step % spec.train.log_every == 0 or progress.step == total
            output = run.executor.step(batch, observe)
            stopping = stop.signal_number is not None
            points.count(batch.num_targets, waited)
            if observe:
                points.observe(progress.step, output)
            improved = False
            if progress.step % eval_every == 0 or progress.step == total:
                points.pause()
                improved = _evaluate_into(run, progress)
                points.evaluated(progress.step, progress.evaluation)
            if progress.step % save_every == 0 or progress.step == total or improved or stopping:
                points.pause()
                points.settle()  # a kill right after the save must not lose the log point of this update
                _require_finite(progress.step, output.loss, output.loss_scale)
                checkpoint_file.save(folder, progress.step, state_of(run, progress), progress.best)
            points.resume()
        points.settle()


def evaluate(run: Run) -> dict[str, float]:
    """Loss and metrics over every held-out sample, with averaged parameters where there are some.

    One synchronisation at the end; sums are in fp64, so the batch size does not show.
    """
    module = run.executor.forward.module
    totals: dict[str, torch.Tensor] = {}
    num_targets = 0
    functions = {"loss": run.loss.total, **run.loss.metrics}
    was_training = module.training
    module.eval()
    average = run.executor.average
    with torch.no_grad(), nullcontext() if average is None else average.swapped_in():
        for batch in evaluation_batches(run.data.evaluation, run.loss.count, run.plan.batching.micro_batch):
            inputs, targets = run.executor.forward.place(batch)
            outputs = run.executor.forward(inputs)
            for name, function in functions.items():
                totals[name] = totals.get(name, 0) + function(outputs, targets).double()
            num_targets += batch.num_targets
    module.train(was_training)
    return {name: float(total) / max(num_targets, 1) for name, total in totals.items()}


def state_of(run: Run, progress: Progress) -> dict[str, Any]:
    """Everything that an exact resume needs: tensors and plain containers."""
    return {
        "format": STATE_FORMAT,
        "step": progress.step,
        "position": {"epoch": progress.position.epoch, "consumed": progress.position.consumed},
        "evaluation": progress.evaluation,
        "best": progress.best,
        "executor": run.executor.state_dict(),
        "rng": _rng_state(run.device),
        "spec": to_tree(run.plan.spec),
    }


def restore(run: Run, state: dict[str, Any]) -> Progress:
    """Put a saved state into `run`; where it stands."""
    run.executor.load_state_dict(state["executor"])
    rng = state["rng"]
    random.setstate(_as_tuple(rng["python"]))
    torch.set_rng_state(rng["cpu"])
    if run.device.type == "cuda" and rng["cuda"] is not None:
        torch.cuda.set_rng_state(rng["cuda"], run.device)
    return Progress(
        step=state["step"],
        position=Position(**state["position"]),
        evaluation=state["evaluation"],
        best=state["best"],
    )


def _batches(run: Run, start: Position) -> Any:
    return training_batches(
        source=run.data.train,
        count_targets=run.loss.count,
        batch_size=run.plan.batching.batch_size,
        seed=run.plan.spec.train.seed,
        start=start,
        num_workers=run.plan.spec.data.config.num_workers,
        pin=run.device.type == "cuda",
    )


def _evaluate_into(run: Run, progress: Progress) -> bool:
    """Evaluate and note the result; whether it is the best so far."""
    progress.evaluation = evaluate(run)
    loss = progress.evaluation["loss"]
    improved = math.isfinite(loss) and (progress.best is None or loss < progress.best["eval"]["loss"])
    if improved:
        progress.best = {"step": progress.step, "eval": progress.evaluation}
    return improved


def _require_finite(step: int, loss: torch.Tensor, loss_scale: torch.Tensor | None) -> None:
    # Under loss scaling a single overflowed loss is skipped; divergence shows at the scale's floor instead.
    if loss_scale is None and not math.isfinite(float(loss)):
        raise non_finite(step, float(loss))


def _rng_state(device: torch.device) -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"python": random.getstate(), "cpu": torch.get_rng_state(), "cuda": cuda}


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, (list, tuple)) else value


