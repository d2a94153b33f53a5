"""What only the built data and the built model show before training starts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainer4090.build.inputs import prepared
from trainer4090.data import Data
from trainer4090.data.pipeline.targets import check_targets
from trainer4090.plan import Plan
from trainer4090.plugins import trial
from trainer4090.records import Batch, Loss, Model
from trainer4090.report.flops import model_flops

LABEL_SAMPLES = 8192
"""Samples whose labels are checked at once: all the windows of a long text would not fit in memory together."""
FLOP_SAMPLES = 2
"""Samples that FLOPs are counted with; BatchNorm refuses one."""


def check_labels(plan: Plan, data: Data, notice: Callable[[str], None]) -> None:
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


def flops_per_sample(plan: Plan, data: Data, model: Model, loss: Loss, notice: Callable[[str], None]) -> float | None:
    """FLOPs of forward and backward of the bare model, None when they cannot be counted. A loss or a model of a plugin
    is tried here for the first time."""
    inputs, targets = data.evaluation.fetch(torch.zeros(FLOP_SAMPLES, dtype=torch.int64), -1)
    dtype = next(model.module.parameters()).dtype
    batch = Batch(prepared(inputs, data.prepare, dtype, channels_last=False), targets, FLOP_SAMPLES)
    trial.check(plan.spec, plan.evidence.data, model, loss, batch)
    flops = model_flops(model.module, batch, loss.total, notice)
    return None if flops is None else flops / FLOP_SAMPLES
