"""Training and evaluation: flat functions that decide when something happens. Where numbers go is report's part."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer4090 import checkpoint_file, samples
from trainer4090.beats import SAVES
from trainer4090.build import Run
from trainer4090.criterion import Waiting
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.data.pipeline.share import Share
from trainer4090.data.pipeline.shared import shared_batches
from trainer4090.data.pipeline.workers import num_processes
from trainer4090.evaluating import evaluate
from trainer4090.executors.base import StepOutput
from trainer4090.item_format import to_plain
from trainer4090.log_point import LogPoints, non_finite
from trainer4090.records import Batch
from trainer4090.signals import StopRequest
from trainer4090.spec import to_tree

STATE_FORMAT = 3
Batches = Generator[tuple[Batch, Position], None, None]


@dataclass
class Progress:
    """Where a run stands; the loop moves it and a checkpoint file keeps it."""

    step: int = 0
    """Updates that were attempted."""
    position: Position = field(default_factory=lambda: Position(0, 0))
    evaluation: dict[str, float] = field(default_factory=dict)
    """The newest evaluation."""
    best: dict[str, Any] | None = None
    """`step` and `eval` of the best evaluation by the plan's criterion."""
    waiting: Waiting = field(default_factory=Waiting)


def train(run: Run, folder: Path, points: LogPoints, progress: Progress, stop: StopRequest) -> None:
    """Train from `progress` to the end of the plan, or to the first update after a stop signal; saved either way.

    Where the plan has patience, its end too is saved: the evaluation after which it is exhausted.

    Raises:
        NonFiniteError: the loss or the state is not finite; nothing is saved after that.
    """
    total = run.plan.horizon.total
    eval_every = run.plan.spec.train.eval_every or run.plan.horizon.per_epoch
    save_every = run.plan.spec.train.checkpoint_every or run.plan.horizon.per_epoch
    show = samples.showing(run) if run.ranks.rank == 0 else None
    with closing(batches_from(run, progress.position)) as batches:
        stop.defer()
        points.begin()
        stopping = _stopping(run, stop)
        while progress.step < total and not stopping:
            output = next_update(run, batches, points, progress)
            at_end = progress.step == total
            improved = False
            if progress.step % eval_every == 0 or at_end:
                points.pause()
                improved = _evaluate_into(run, points, progress)
                points.show(progress.step, [] if show is None else show())
            stopping = _stopping(run, stop) or run.plan.evaluation.criterion.ends(progress.waiting)
            if progress.step % save_every == 0 or improved or stopping or at_end:
                points.pause()
                points.settle()  # a kill right after the save must not lose the log point of this update
                _require_finite(run, progress.step, output)
                _save(run, folder, progress)
            points.resume()


def _stopping(run: Run, stop: StopRequest) -> bool:
    """Whether a signal ends the run here, on every rank."""
    agreed = run.ranks.agree(stop.signal_number or 0)
    if agreed:
        stop.signal_number = agreed
    return agreed != 0


def _save(run: Run, folder: Path, progress: Progress) -> None:
    """Save the state, which every rank has, once."""
    run.ranks.mark(SAVES, slow=True)
    state = state_of(run, progress)
    if run.ranks.rank == 0:
        checkpoint_file.save(folder, progress.step, state, progress.best)


def next_update(run: Run, batches: Batches, points: LogPoints, progress: Progress) -> StepOutput:
    """Make the next update and note it; nothing here waits for the device."""
    asked = time.perf_counter()
    batch, progress.position = next(batches)
    waited = time.perf_counter() - asked
    progress.step += 1
    observe = progress.step % run.plan.spec.train.log_every == 0 or progress.step == run.plan.horizon.total
    output = run.executor.step(batch, observe)
    points.count(batch.num_targets, waited)
    if observe:
        points.observe(progress.step, output)
    return output


def state_of(run: Run, progress: Progress) -> dict[str, Any]:
    """Everything that an exact resume needs: tensors and plain containers."""
    return {
        "format": STATE_FORMAT,
        "step": progress.step,
        "position": {"epoch": progress.position.epoch, "consumed": progress.position.consumed},
        "evaluation": progress.evaluation,
        "best": progress.best,
        "waiting": {"reference": progress.waiting.reference, "num_stale": progress.waiting.num_stale},
        "executor": run.executor.state_dict(),
        "rng": _rng_state(run.device),
        "spec": to_tree(run.plan.spec),
        "data": _data_of(run),
    }


def _data_of(run: Run) -> dict[str, Any]:
    """What using the model elsewhere needs to know of the data that it was trained on."""
    traits, item_format = run.plan.evidence.data, run.data.format
    return {
        "kind": traits.kind,
        "item_shape": list(traits.item_shape),
        "num_classes": traits.num_classes,
        "multi_label": traits.multi_label,
        "items_per_sample": traits.items_per_sample,
        "class_names": list(traits.class_names),
        "num_train": traits.num_train,
        "fingerprint": traits.fingerprint,
        "format": None if item_format is None else to_plain(item_format),
    }


def restore(run: Run, state: dict[str, Any]) -> Progress:
    """Put a saved state into `run`; where it stands."""
    run.executor.load_state_dict(state["executor"])
    torch.set_rng_state(state["rng"]["cpu"])
    if run.device.type == "cuda" and state["rng"]["cuda"] is not None:
        torch.cuda.set_rng_state(state["rng"]["cuda"], run.device)
    return Progress(
        step=state["step"],
        position=Position(**state["position"]),
        evaluation=state["evaluation"],
        best=state["best"],
        waiting=Waiting(**state["waiting"]),
    )


def batches_from(run: Run, start: Position) -> Batches:
    """The training batches behind a position, without end."""
    batching, seed = run.plan.batching, run.plan.spec.train.seed
    num_workers, pin = num_processes(run.plan.spec.data.config.num_workers), run.device.type == "cuda"
    if run.plan.parallelism.executor == "replicated":
        share = Share(run.ranks.rank, run.ranks.size, stride=batching.batch_size // run.ranks.size)
        return shared_batches(run.data.train, run.loss.count, share, seed, start, num_workers, pin)
    return training_batches(run.data.train, run.loss.count, batching.batch_size, seed, start, num_workers, pin)


def _evaluate_into(run: Run, points: LogPoints, progress: Progress) -> bool:
    """Evaluate and note the result; whether it is the best so far.

    Raises:
        NonFiniteError: the evaluation loss is not finite.
    """
    progress.evaluation = evaluate(run)
    points.evaluated(progress.step, progress.evaluation)
    for text in run.data.notices():
        points.notice(text)
    loss = progress.evaluation["loss"]
    if not math.isfinite(loss):
        raise non_finite("eval/loss", loss, progress.step)
    criterion = run.plan.evaluation.criterion
    improved = criterion.improves(progress.evaluation, None if progress.best is None else progress.best["eval"])
    if improved:
        progress.best = {"step": progress.step, "eval": progress.evaluation}
    progress.waiting = criterion.after(progress.waiting, progress.evaluation)
    return improved


def _require_finite(run: Run, step: int, output: StepOutput) -> None:
    """Refuse to save a state that no training comes back from.

    Raises:
        NonFiniteError: naming the loss, a parameter or a buffer.
    """
    # Under loss scaling a single overflowed loss is skipped; divergence shows at the scale's floor instead.
    if output.loss_scale is None and not math.isfinite(float(output.loss)):
        raise non_finite("train/loss", float(output.loss), step)
    module = run.executor.forward.module
    sound = {name: parameter.isfinite().all() for name, parameter in module.named_parameters()}
    # A mask may hold infinities on purpose.
    sound |= {name: buffer.isnan().logical_not().all() for name, buffer in module.named_buffers()}
    verdicts = torch.stack(list(sound.values())).tolist()
    for name, good in zip(sound, verdicts, strict=True):
        if not good:
            raise non_finite(name, "nan or infinite", step)


def _rng_state(device: torch.device) -> dict[str, Any]:
    """State of torch's generators. Nothing in training draws from Python's or NumPy's."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}
