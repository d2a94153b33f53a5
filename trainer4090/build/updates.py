"""The optimizer over the trained parameters, and the end of an update around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainer4090.errors import ConfigError, Problem
from trainer4090.executors.average import Average
from trainer4090.executors.graph import capturable
from trainer4090.executors.low_bit import hold_in_8_bits, read_8_bits
from trainer4090.executors.update import CountedUpdate, PlainUpdate, ScaledUpdate, Update
from trainer4090.finetune.depth import depths
from trainer4090.plan import Plan


def make_optimizer(
    plan: Plan, module: nn.Module, blocks: tuple[str, ...], device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer of all trained parameters; a captured one counts its steps on the device.

    Raises:
        ConfigError: there are no blocks to decay the rate over.
    """
    scales: dict[str, float] = {}
    decay = plan.spec.rates.layer_decay
    if decay is not None:
        if not blocks:
            given = f"{decay:g}, but model={plan.spec.model.name} has no blocks to count"
            raise ConfigError(Problem("optimizer.layer_decay", given, "use null"))
        deep = depths((name for name, _ in module.named_parameters()), blocks)
        scales = {name: decay ** (len(blocks) + 1 - depth) for name, depth in deep.items()}
    groups = parameter_groups(module, plan.optimizer.learning_rate, plan.optimizer.weight_decay, scales)
    optimizer = plan.optimizer.build(groups, plan.fused_optimizer)
    if plan.memory.low_bit is None:
        read_8_bits(optimizer)
    else:
        hold_in_8_bits(optimizer, plan.optimizer.states, plan.memory.low_bit.min_elements)
    return capturable(optimizer) if plan.kernels.graph and device.type == "cuda" else optimizer


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


def make_update(plan: Plan, optimizer: torch.optim.Optimizer, average: Average | None, device: torch.device) -> Update:
    """The update that precision and kernels ask for.

    Raises:
        ConfigError: the optimizer cannot skip an update on the device.
    """
    peak = plan.optimizer.learning_rate
    rates = [peak * plan.schedule.factor(update, plan.horizon) for update in range(plan.horizon.total)]
    if plan.precision.loss_scale is None:
        on_device = plan.kernels.graph
        return CountedUpdate(optimizer, rates, average, device) if on_device else PlainUpdate(optimizer, rates, average)
    if not getattr(optimizer, "_step_supports_amp_scaling", False):  # torch's own mark of its fused kernels
        name = plan.spec.optimizer.name
        given = f"{name} cannot skip an overflowed update on the device, as precision={plan.spec.precision.name} needs"
        remedy = "use precision=bf16, or an optimizer with fused kernels: optimizer=sgd, optimizer=adamw"
        raise ConfigError(Problem("optimizer", given, remedy))
    return ScaledUpdate(optimizer, rates, average, plan.precision.loss_scale, device)
