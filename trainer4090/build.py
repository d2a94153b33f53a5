"""From a plan to live objects: the only place that knows every axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.targets import check_targets
from trainer4090.errors import ConfigError, Problem
from trainer4090.executors.average import Average
from trainer4090.executors.local import Forward, LocalExecutor
from trainer4090.executors.tensors import map_tensors
from trainer4090.executors.update import PlainUpdate, ScaledUpdate, Update
from trainer4090.finetune.depth import depths
from trainer4090.finetune.freeze import freeze
from trainer4090.finetune.start import start_from
from trainer4090.losses import LOSSES
from trainer4090.models import MODELS
from trainer4090.plan import Plan
from trainer4090.plugins import trial
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


def build(
    plan: Plan,
    device: torch.device,
    notice: Callable[[str], None],
    dtype: torch.dtype = torch.float32,
    restoring: bool = False,
) -> Run:
    """The run of `plan` on `device`. The model is initialised on the CPU, so every device starts equal.

    `dtype`: of parameters and inputs; float64 lets a comparison see algebra instead of rounding.
    `restoring`: a saved state is put into the run next, so `model.weights` is not read again.

    Raises:
        ConfigError: the model does not take the data's items, the weights are not its own, or nothing is trained.
        DataError: the data set is damaged or its labels are out of range.
        MachineError: a compiler is missing, or a package that reads the weights.
        CheckpointFileError: the weights cannot be read.
    """
    spec = plan.spec
    data = DATA.get(spec.data.name).build(spec.data.config, spec.train.seed)
    _check_labels(plan, data, notice)
    loss = LOSSES.get(spec.loss.name).build(spec.loss.config, plan.evidence.data)
    model = _initialised(plan, restoring, notice)
    frozen = freeze(model.module, model.blocks, spec.start.freeze, notice)
    model.module.to(dtype)
    flops = _flops_per_sample(plan, data, model, loss, notice)
    forward = Forward(
        module=_transformed(plan, model, device),
        prepare=partial(prepared, prepare=data.prepare, dtype=dtype, channels_last=plan.kernels.channels_last),
        context=partial(plan.precision.context, device),
        device=device,
        frozen=frozen,
    )
    forward.set_training(True)
    executor = _executor(plan, forward, loss, model.blocks)
    if device.type == "cuda":
        data = replace(data, train=data.train.resident(device), evaluation=data.evaluation.resident(device))
    return Run(plan, device, data, loss, executor, flops)


def _executor(plan: Plan, forward: Forward, loss: Loss, blocks: tuple[str, ...]) -> LocalExecutor:
    module, decay = forward.module, plan.spec.ema.decay
    average = None if decay is None else Average(module, decay)
    optimizer = _optimizer(plan, module, blocks)
    return LocalExecutor(
        forward=forward,
        loss=loss,
        optimizer=optimizer,
        update=_update(plan, optimizer, average, forward.device),
        average=average,
        micro_batch=plan.batching.micro_batch,
        clip_norm=plan.spec.train.clip_norm,
    )


def _initialised(plan: Plan, restoring: bool, notice: Callable[[str], None]) -> Model:
    """The model on the CPU, from the seed or from `model.weights`."""
    spec = plan.spec
    torch.manual_seed(spec.train.seed)
    model = MODELS.get(spec.model.name).build(spec.model.config, plan.evidence.data)
    if spec.start.weights is not None and not restoring:
        num_outputs = plan.evidence.model.num_outputs or plan.evidence.data.num_classes
        start_from(spec.start.weights, model, num_outputs, notice)
    return model


def _optimizer(plan: Plan, module: nn.Module, blocks: tuple[str, ...]) -> torch.optim.Optimizer:
    scales: dict[str, float] = {}
    decay = plan.spec.rates.layer_decay
    if decay is not None:
        if not blocks:
            given = f"{decay:g}, but model={plan.spec.model.name} has no blocks to count"
            raise ConfigError(Problem("optimizer.layer_decay", given, "use null"))
        deep = depths((name for name, _ in module.named_parameters()), blocks)
        scales = {name: decay ** (len(blocks) + 1 - depth) for name, depth in deep.items()}
    groups = parameter_groups(module, plan.optimizer.learning_rate, plan.optimizer.weight_decay, scales)
    return plan.optimizer.build(groups, plan.fused_optimizer)


def parameter_groups(
    module: nn.Module, learning_rate: float, weight_decay: float, scales: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Groups that hold every trained parameter once: matrices with weight decay, 1-D parameters without.

    Norms and biases are shifts and scales of single features; pulling them to 0 regularises nothing.
    `scales`: name -> share of the learning rate that the parameter gets, 1 for any other; each share has its groups.
    """
    members: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            place = ((scales or {}).get(name, 1.0), parameter.ndim < 2)
            members.setdefault(place, []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if vectors else weight_decay,
            "lr": learning_rate * scale,
            "lr_scale": scale,
        }
        for (scale, vectors), parameters in sorted(members.items(), key=lambda item: (-item[0][0], item[0][1]))
    ]


def prepared(inputs: Any, prepare: Callable[[Any], Any], dtype: torch.dtype, channels_last: bool) -> Any:
    """Inputs as the module takes them; only 4-D tensors have a channels_last layout."""
    # Decoders write channels last, other sources do not. Before `prepare`, which keeps the layout: moving bytes costs
    # a quarter of moving floats.
    layout = torch.channels_last if channels_last else torch.contiguous_format
    inputs = map_tensors(partial(_laid_out, layout=layout), inputs)
    return map_tensors(partial(_cast, dtype=dtype), prepare(inputs))


def _laid_out(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor


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
    if not getattr(optimizer, "_step_supports_amp_scaling", False):  # torch's own mark of its fused kernels
        name = plan.spec.optimizer.name
        given = f"{name} cannot skip an overflowed update on the device, as precision={plan.spec.precision.name} needs"
        remedy = "use precision=bf16, or an optimizer with fused kernels: optimizer=sgd, optimizer=adamw"
        raise ConfigError(Problem("optimizer", given, remedy))
    return ScaledUpdate(optimizer, rates, average, plan.precision.loss_scale, device)


def _check_labels(plan: Plan, data: Data, notice: Callable[[str], None]) -> None:
    """Check every target on the host: on a GPU a wrong one is an assertion at an unrelated line."""
    traits, ignored_target = plan.evidence.data, plan.loss.ignore_index
    if traits.targets_checked and (ignored_target is None or not 0 <= ignored_target < traits.num_classes):
        return
    outputs = plan.evidence.model.num_outputs or traits.num_classes
    for name, source in (("training", data.train), ("held-out", data.evaluation)):
        ignored = total = 0
        for samples in torch.arange(len(source)).split(LABEL_SAMPLES):
            targets = source.targets(samples, -1)
            if not targets.is_floating_point():
                ignored += check_targets(targets, outputs, ignored_target, f"data={plan.spec.data.name}")
            total += targets.numel()
        if ignored:
            notice(f"{ignored:,} of {total:,} {name} targets are ignored by the loss")


def _flops_per_sample(plan: Plan, data: Data, model: Model, loss: Loss, notice: Callable[[str], None]) -> float | None:
    inputs, targets = data.evaluation.fetch(torch.zeros(FLOP_SAMPLES, dtype=torch.int64), -1)
    dtype = next(model.module.parameters()).dtype
    batch = Batch(prepared(inputs, data.prepare, dtype, channels_last=False), targets, FLOP_SAMPLES)
    trial.check(plan.spec, plan.evidence.data, model, loss, batch)
    flops = model_flops(model.module, batch, loss.total, notice)
    return None if flops is None else flops / FLOP_SAMPLES
