"""What comes of options of several axes together and is otherwise than one would expect; the plan prints it."""

from __future__ import annotations

from trainer4090.kernels import Kernels
from trainer4090.memory import Memory
from trainer4090.records import Batching, Notice
from trainer4090.schedules import Horizon, Schedule
from trainer4090.spec import RunSpec
from trainer4090.traits import ModelTraits


def of_all(
    spec: RunSpec,
    batching: Batching,
    horizon: Horizon,
    schedule: Schedule,
    model: ModelTraits,
    memory: Memory,
    kernels: Kernels,
) -> tuple[Notice, ...]:
    """All of them."""
    about_length = early_end(spec, schedule, horizon)
    return (*batch_norm(batching, model), *about_length, *whole_gradients(memory, kernels))


def batch_norm(batching: Batching, model: ModelTraits) -> tuple[Notice, ...]:
    """BatchNorm sees micro-batches."""
    if not model.batch_norm or batching.accumulation * batching.data_ranks <= 1:
        return ()
    asked, got = f"batches of {batching.batch_size}", f"statistics of {batching.micro_batch} samples"
    why = "BatchNorm sees one micro-batch at a time"
    why += "" if batching.data_ranks == 1 else f"; running statistics are the mean over {batching.data_ranks} ranks"
    return (Notice("train.micro_batch", asked, got, why),)


def early_end(spec: RunSpec, schedule: Schedule, horizon: Horizon) -> tuple[Notice, ...]:
    """An early end cuts a schedule short."""
    if spec.train.patience is None or not schedule.needs_total:
        return ()
    asked, got = f"an end after {spec.train.patience} evaluations", f"a {spec.schedule.name} schedule cut short"
    why = f"its rate comes down over {horizon.total} updates, and an early end does not reach the low ones"
    return (Notice("train.patience", asked, got, why),)


def whole_gradients(memory: Memory, kernels: Kernels) -> tuple[Notice, ...]:
    """Compiled code hands out all gradients together."""
    if not memory.step_in_backward or kernels.compile_backend is None:
        return ()
    asked, got = "gradients freed one by one", "all gradients of a compiled unit at once"
    return (Notice("memory", asked, got, "a compiled backward hands them out together; eager blocks do not"),)
