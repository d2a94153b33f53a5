"""What the tests of equal training share: states, their comparison, and an executor around a hand-made module."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from conftest import TINY_MODELS
from torch import nn

from trainer4090.build import Run
from trainer4090.executors.average import Average
from trainer4090.executors.base import Forward
from trainer4090.executors.local import LocalExecutor
from trainer4090.executors.update import PlainUpdate, ScaledUpdate
from trainer4090.precision import LossScale
from trainer4090.records import Batch, Loss

CPU = torch.device("cpu")
AOT = ("kernels=fused", "kernels.fused.backend=aot_eager")
"""The compiler's semantics without its code generator."""
WITH_DROPOUT = {
    "cnn": ("model.dropout=0.2",),
    "resnet": (),
    "gpt": ("model.dropout=0.2",),
    "char_lstm": ("model.dropout=0.2",),
}
"""Models that have something to recompute wrongly, with the words that turn their dropout on."""


def tiny(name: str, *words: str, batch_size: int = 8) -> tuple[str, ...]:
    """Words for a model small enough for a test."""
    pool = ("data.pool_size=16", "data.num_evaluation=16") if name == "resnet" else ()
    return (*TINY_MODELS[name], *pool, f"train.batch_size={batch_size}", "train.epochs=null", "train.steps=100", *words)


def state_of(run: Run) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers by name."""
    return {name: tensor.clone() for name, tensor in run.executor.forward.module.state_dict().items()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Equal names, and tensors equal bit for bit."""
    assert list(first) == list(second)
    assert not [name for name in first if not torch.equal(first[name], second[name])]


def assert_near(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], tolerance: float) -> None:
    """Equal names, and tensors whose difference is small beside the largest value of each."""
    assert list(first) == list(second)
    for name, tensor in first.items():
        scale = max(float(tensor.abs().max()), 1.0)
        torch.testing.assert_close(
            second[name], tensor, rtol=0, atol=tolerance * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


MEAN = Loss(total=lambda outputs, targets: outputs.sum(), count=len)
"""The mean of the outputs, whatever the targets."""


def executor_of(
    module: nn.Module,
    micro_batch: int,
    loss: Loss = MEAN,
    scale: LossScale | None = None,
    average: Average | None = None,
    **options: Any,
) -> LocalExecutor:
    """An executor of SGD at rate 1; options: `clip_norm`, `rates`, `momentum`."""
    optimizer = torch.optim.SGD(
        module.parameters(), lr=1.0, momentum=options.get("momentum", 0.0), fused=scale is not None
    )
    rates = options.get("rates", [1.0])
    plain, device = PlainUpdate(optimizer, rates, average), CPU
    update = plain if scale is None else ScaledUpdate(optimizer, rates, average, scale, device)
    forward = Forward(module, prepare=lambda inputs: inputs, context=nullcontext, device=device)
    return LocalExecutor(forward, loss, optimizer, update, average, micro_batch, options.get("clip_norm"))


def batch_of(inputs: torch.Tensor, targets: torch.Tensor | None = None, num_targets: int | None = None) -> Batch:
    """A batch whose targets are all valid unless it says otherwise."""
    count = len(inputs) if num_targets is None else num_targets
    return Batch(inputs, torch.zeros(len(inputs)) if targets is None else targets, count)


def weight_of(module: nn.Module) -> float:
    """The only parameter of a module that has one number."""
    (parameter,) = module.parameters()
    return float(parameter.detach())


def scalar_module(weight: float = 0.0) -> nn.Linear:
    """`y = w * x`."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, weight)
    return module
