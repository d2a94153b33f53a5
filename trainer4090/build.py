"""From a plan to live objects: the only place that knows every axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.targets import check_targets
from trainer4090.executors.average import Average
from trainer4090.executors.local import Forward, LocalExecutor
from trainer4090.executors.tensors import map_tensors
from trainer4090.executors.update import PlainUpdate, ScaledUpdate, Update
from trainer4090.losses import LOSSES
from trainer4090.models import MODELS
from trainer4090.plan import Plan
from trainer4090.records import Batch, Loss, Model, Part, Site
from trainer4090.report.flops import model_flops

LABEL_SAMPLES = 8192
"""Samples whose labels are checked at once: all the windows of a long text would not fit in memory together."""
FLOP_SAMPLES = 2
"""Samples that FLOPs are counted with; BatchNorm refuses one."""


@dataclass(frozen=True)
class Run:
    """Everything that the loop needs, built and placed."""

    plan: Plan
    device: torch.device
    data: Data
    loss: Loss
    executor: LocalExecutor
    flops_per_sample: float | None
    """Forward and backward of the bare model, None when they cannot be counted."""


def build(plan: Plan, device: torch.device, notice: Callable[[str], None], dtype: torch.dtype = torch.float32) -> Run:
    """The run of `plan` on `device`. The model is initialised on the CPU, so every device starts equal.

    `dtype`: of parameters and inputs; float64 lets a comparison see algebra instead of rounding.

    Raises:
        ConfigError: the model does not take the data's items.
        DataError: the data set is damaged or its labels are out of range.
        MachineError: a compiler is missing.
    """
    spec = plan.spec
    data = DATA.get(spec.data.name).build(spec.data.config, spec.train.seed)
    _check_labels(plan, data, notice)
    loss = LOSSES.get(spec.loss.name).build(spec.loss.config, plan.evidence.data)
    torch.manual_seed(spec.train.seed)
    model = MODELS.get(spec.model.name).build(spec.model.config, plan.evidence.data)
    model.module.to(dtype)
    flops = _flops_per_sample(model.module, data, loss, notice)
    module = _transformed(plan, model, device)
    forward = Forward(
        module=module,
        prepare=partial(prepared, prepare=data.prepare, dtype=dtype, channels_last=plan.kernels.channels_last),
        context=partial(plan.precision.context, device),
        device=device,
    )
    average = None if spec.ema.decay is None else Average(module, spec.ema.decay)
    groups = parameter_groups(module, plan.optimizer.learning_rate, plan.optimizer.weight_decay)
    optimizer = plan.optimizer.build(groups, plan.fused_optimizer)
    executor = LocalExecutor(
        forward=forward,
        loss=loss,
        optimizer=optimizer,
        update=_update(plan, optimizer, average, device),
        average=average,
        micro_batch=plan.batching.micro_batch,
        clip_norm=spec.train.clip_norm,
    )
    if device.type == "cuda":
        data = replace(data, train=data.train.resident(device), evaluation=data.evaluation.resident(device))
    return Run(plan, device, data, loss, executor, flops)


def parameter_groups(module: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups that hold every trained parameter once: matrices with weight decay, 1-D parameters without.

    Norms and biases are shifts and scales of single features; pulling them to 0 regularises nothing.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = (
        ([parameter for parameter in parameters if parameter.ndim >= 2], weight_decay),
        ([parameter for parameter in parameters if parameter.ndim < 2], 0.0),
    )
    return [{"params": members, "weight_decay": decay, "lr": learning_rate} for members, decay in groups if members]


def prepared(inputs: Any, prepare: Callable[[Any], Any], dtype: torch.dtype, channels_last: bool) -> Any:
    """Inputs as the module takes them; only 4-D tensors have a channels_last layout."""
    if channels_last:
        # Before `prepare`, which keeps the layout: moving bytes costs a quarter of moving floats.
        inputs = map_tensors(_laid_out, inputs)
    return map_tensors(partial(_cast, dtype=dtype), prepare(inputs))


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype != dtype and tensor.is_floating_point() else tensor


def _transformed(plan: Plan, model: Model, device: torch.device) -> nn.Module:
    parts = (Part(model.module.to(device), model.blocks, model.compile_units),)
    site = Site(rank=0, device=device)
    for transform in plan.transforms:
        parts = transform.apply(parts, site)
    return parts[0].module


def _update(plan: Plan, optimizer: torch.optim.Optimizer, average: Average | None, device: torch.device) -> Update:
    peak = plan.optimizer.learning_rate
    rates = [peak * plan.schedule.factor(update, plan.horizon) for update in range(plan.horizon.total)]
    if plan.precision.loss_scale is None:
        return PlainUpdate(optimizer, rates, average)
    return ScaledUpdate(optimizer, rates, average, plan.precision.loss_scale, device)


def _check_labels(plan: Plan, data: Data, notice: Callable[[str], None]) -> None:
    """Check every target on the host: on a GPU a wrong one is an assertion at an unrelated line."""
    outputs = plan.evidence.model.num_outputs or plan.evidence.data.num_classes
    for name, source in (("training", data.train), ("held-out", data.evaluation)):
        ignored = total = 0
        for samples in torch.arange(len(source)).split(LABEL_SAMPLES):
            targets = source.targets(samples, -1)
            if not targets.is_floating_point():
                ignored += check_targets(targets, outputs, plan.loss.ignore_index, f"data={plan.spec.data.name}")
            total += targets.numel()
        if ignored:
            notice(f"{ignored:,} of {total:,} {name} targets are ignored by the loss")


def _flops_per_sample(module: nn.Module, data: Data, loss: Loss, notice: Callable[[str], None]) -> float | None:
    inputs, targets = data.evaluation.fetch(torch.zeros(FLOP_SAMPLES, dtype=torch.int64), -1)
    dtype = next(module.parameters()).dtype
    batch = Batch(prepared(inputs, data.prepare, dtype, channels_last=False), targets, FLOP_SAMPLES)
    flops = model_flops(module, batch, loss.total, notice)
    return None if flops is None else flops / FLOP_SAMPLES
