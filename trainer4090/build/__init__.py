"""From a plan to live objects: the only place that knows every axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from trainer4090.build.checks import check_labels, flops_per_sample
from trainer4090.build.execution import make_executor
from trainer4090.build.inputs import prepared
from trainer4090.data import DATA, Data
from trainer4090.executors.base import Executor, Forward
from trainer4090.executors.contexts import MakeContext, nested
from trainer4090.executors.staging import Staging
from trainer4090.finetune.freeze import freeze
from trainer4090.finetune.start import start_from
from trainer4090.losses import LOSSES
from trainer4090.models import MODELS
from trainer4090.plan import Plan
from trainer4090.ranks import ALONE, Ranks
from trainer4090.records import Loss, Model, Part, Site


@dataclass(frozen=True)
class Run:
    """Everything that the loop needs, built and placed."""

    plan: Plan
    device: torch.device
    data: Data
    loss: Loss
    executor: Executor
    ranks: Ranks
    flops_per_sample: float | None
    """Forward and backward of the bare model, None when they cannot be counted."""


def build(
    plan: Plan,
    device: torch.device,
    notice: Callable[[str], None],
    dtype: torch.dtype = torch.float32,
    restoring: bool = False,
    ranks: Ranks = ALONE,
) -> Run:
    """The run of `plan` on `device`. The model is initialised on the CPU, so every device starts equal.

    `dtype`: of parameters and inputs; float64 shows algebra instead of rounding. `ranks`: each builds the same run.
    `restoring`: a saved state is put into the run next, so `model.weights` is not read again.

    Raises:
        ConfigError: the model does not take the data's items, the weights are not its own, or nothing is trained.
        DataError: the data set is damaged or its labels are out of range.
        MachineError, CheckpointFileError: a compiler is missing, or the weights cannot be read.
    """
    spec = plan.spec
    data = DATA.get(spec.data.name).build(spec.data.config, spec.train.seed)
    check_labels(plan, data, notice)
    loss = LOSSES.get(spec.loss.name).build(spec.loss.config, plan.evidence.data)
    model = _initialised(plan, restoring, notice)
    frozen = freeze(model.module, model.blocks, spec.start.freeze, notice)
    model.module.to(dtype)
    flops = flops_per_sample(plan, data, model, loss, notice)
    part = _transformed(plan, model, Site(ranks.rank, device, ranks.mesh, notice))
    forward = Forward(
        module=part.module,
        prepare=partial(prepared, prepare=data.prepare, dtype=dtype, channels_last=plan.kernels.channels_last),
        context=_context(plan, part.module, device),
        device=device,
        frozen=frozen,
        staging=Staging(device) if device.type == "cuda" and spec.feed.prefetch_stream else None,
    )
    forward.set_training(True)
    executor = make_executor(plan, forward, loss, part, ranks)
    if device.type == "cuda":
        data = replace(data, train=data.train.resident(device), evaluation=data.evaluation.resident(device))
    return Run(plan, device, data, loss, executor, ranks, flops)


def _context(plan: Plan, module: nn.Module, device: torch.device) -> MakeContext:
    """What makes the context of one forward; what knows the model is outermost."""
    around = [context.make(module, device) for context in plan.memory.contexts]
    contexts = (plan.precision.context, *plan.kernels.contexts)
    return nested(*around, *(partial(context, device) for context in contexts))


def _initialised(plan: Plan, restoring: bool, notice: Callable[[str], None]) -> Model:
    """The model on the CPU, from the seed or from `model.weights`."""
    spec = plan.spec
    torch.manual_seed(spec.train.seed)
    model = MODELS.get(spec.model.name).build(spec.model.config, plan.evidence.data)
    if spec.start.weights is not None and not restoring:
        num_outputs = plan.evidence.model.num_outputs or plan.evidence.data.num_classes
        start_from(spec.start.weights, model, num_outputs, notice)
    return model


def _transformed(plan: Plan, model: Model, site: Site) -> Part:
    parts = (Part(model.module.to(site.device), model.blocks, model.compile_units),)
    for transform in plan.transforms:
        parts = transform.apply(parts, site)
    return parts[0]
