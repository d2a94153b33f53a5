"""Mixed precision is the loop that a person would write with autocast, bit for bit, and trains as well as fp32."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from conftest import run_of, train_updates
from equal_runs import assert_same, state_of, tiny
from torch import nn
from torch.nn import functional

from trainer4090.build import Run
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.loop import evaluate

CLIP_NORM = 0.5
RATE = 2.0**-7
"""Exact in fp32: under loss scaling the rate is a tensor on the device."""
DTYPES = {"amp": torch.float16, "bf16": torch.bfloat16}


def by_hand(
    run: Run, optimizer: torch.optim.Optimizer, dtype: torch.dtype, scaler: torch.amp.GradScaler
) -> list[float]:
    """Gradient norms of ten updates in plain torch, on the module and the batches of a fresh run."""
    module, prepare, norms = run.executor.forward.module, run.executor.forward.prepare, []
    batches = training_batches(
        run.data.train, run.loss.count, 8, seed=0, start=Position(0, 0), num_workers=0, pin=False
    )
    for _ in range(10):
        batch, _ = next(batches)
        with torch.autocast("cpu", dtype):
            outputs = module(prepare(batch.inputs))
        losses = functional.cross_entropy(outputs.float().flatten(0, -2), batch.targets.flatten(), reduction="sum")
        loss = losses / batch.targets.numel()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), CLIP_NORM)))
        scaler.step(optimizer)
        scaler.update()
    return norms


def groups_of(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    parameters = list(module.parameters())
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim == 1], "weight_decay": 0.0},
    ]


SCALES = {  # initial scale, growth interval
    "steady": (65536.0, 2000),
    "growing": (8.0, 3),
    "overflowing": (2.0**20, 2),  # the first updates are skipped, later ones now and then
}


@pytest.mark.parametrize(("precision", "scale"), [("bf16", "none"), *(("amp", scale) for scale in SCALES)])
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_equals_a_loop_written_by_hand(model: str, precision: str, scale: str) -> None:
    scaled = precision == "amp"
    initial, interval = SCALES.get(scale, (1.0, 1))
    words = (f"precision={precision}", "optimizer=adamw", f"optimizer.lr={RATE}", "schedule=constant",
             f"train.clip_norm={CLIP_NORM}")  # fmt: skip
    if scaled:
        words += (f"precision.initial_scale={initial}", f"precision.growth_interval={interval}")
    ours, reference = run_of(*tiny(model, *words)), run_of(*tiny(model, *words))
    groups = groups_of(reference.executor.forward.module, 0.01)
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=scaled or None)
    scaler = torch.amp.GradScaler("cpu", initial, growth_interval=interval, enabled=scaled)
    torch.manual_seed(1)  # dropout draws from here
    norms = by_hand(reference, optimizer, DTYPES[precision], scaler)
    torch.manual_seed(1)
    outputs = updates(ours, 10)
    assert [float(output.grad_norm) for output in outputs] == pytest.approx(norms, rel=0, abs=0, nan_ok=True)
    assert_same(state_of(ours), state_of(reference))
    if scaled:
        assert ours.executor.state_dict()["update"]["scale"] == scaler.get_scale()
        applied = int(outputs[-1].applied)
        assert 3 < applied < 9 if scale == "overflowing" else applied == 10


def updates(run: Run, num_updates: int) -> list[Any]:
    batches = training_batches(
        run.data.train, run.loss.count, 8, seed=0, start=Position(0, 0), num_workers=0, pin=False
    )
    return [run.executor.step(next(batches)[0], observe=True) for _ in range(num_updates)]


@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_logged_norm_does_not_depend_on_the_loss_scale(model: str) -> None:
    def norms(scale: float) -> list[float]:
        run = run_of(*tiny(model, "precision=amp", f"precision.initial_scale={scale}"))
        return [float(output.grad_norm) for output in updates(run, 3)]

    assert norms(1024.0) == pytest.approx(norms(4096.0), rel=2e-3)


def observed_dtypes(run: Run, kind: type[nn.Module]) -> set[torch.dtype]:
    """Dtypes that modules of `kind` return in one update."""
    seen: set[torch.dtype] = set()
    for module in run.executor.forward.module.modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda _, inputs, output: seen.add(output.dtype))
    updates(run, 1)
    return seen


@pytest.mark.parametrize("precision", DTYPES)
def test_where_each_dtype_is(precision: str) -> None:  # case B10: what is asked for is what runs, on a CPU too
    run = run_of(*tiny("gpt", f"precision={precision}"))
    assert run.plan.precision.arithmetic == str(DTYPES[precision]).removeprefix("torch.")
    assert observed_dtypes(run, nn.Linear) == {DTYPES[precision]}
    assert observed_dtypes(run, nn.LayerNorm) == {torch.float32}
    assert all(parameter.dtype == parameter.grad.dtype == torch.float32  # type: ignore[union-attr]
               for parameter in run.executor.forward.module.parameters())  # fmt: skip
    assert updates(run, 1)[0].loss.dtype == torch.float32


def half(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)


SENSITIVE = {
    "batch_norm": lambda x: functional.batch_norm(x, None, None, torch.ones(64), torch.zeros(64), training=True),
    "layer_norm": lambda x: functional.layer_norm(x, (64,)),
    "softmax": lambda x: functional.softmax(x, -1),
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("operation", SENSITIVE)
def test_norms_and_softmax_compute_in_fp32(operation: str, dtype: torch.dtype) -> None:
    inputs = half((512, 64), dtype)
    with torch.autocast("cpu", dtype):
        result = SENSITIVE[operation](inputs)
    exact = SENSITIVE[operation](inputs.float())
    # Half of the distance between neighbours: rounded once, at the end.
    torch.testing.assert_close(result.float(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("precision", DTYPES)
def test_the_loss_is_computed_in_fp32(precision: str) -> None:
    run = run_of(*tiny("mlp", f"precision={precision}"))
    logits = half((64, 10), DTYPES[precision])
    targets = torch.arange(64) % 10
    assert torch.equal(
        run.loss.total(logits, targets), functional.cross_entropy(logits.float(), targets, reduction="sum")
    )


def test_fp32_has_neither_autocast_nor_scale() -> None:
    run = run_of(*tiny("gpt"))
    assert observed_dtypes(run, nn.Linear) == {torch.float32}
    assert updates(run, 1)[0].loss_scale is None


def test_tf32_on_a_cpu_says_that_it_is_fp32() -> None:
    run, reference = run_of(*tiny("mlp", "precision=tf32")), run_of(*tiny("mlp"))
    assert "precision: asked tf32, got float32" in run.plan.describe()
    assert train_updates(run, 3) == train_updates(reference, 3)
    assert_same(state_of(run), state_of(reference))


def accuracies(precision: str) -> list[float]:
    found = []
    for seed in range(5):
        words = ("model=cnn", "model.width=16", "train.epochs=6", f"precision={precision}", f"train.seed={seed}")
        run = run_of(*words)
        train_updates(run, run.plan.horizon.total)
        found.append(evaluate(run)["accuracy"])
    return found


@pytest.mark.full
def test_final_accuracy_is_fp32s_within_its_spread() -> None:
    reference = accuracies("fp32")
    spread = max(max(reference) - min(reference), 0.01)
    assert statistics.mean(reference) > 0.95
    for precision in DTYPES:
        assert abs(statistics.mean(accuracies(precision)) - statistics.mean(reference)) < spread
