"""Equal training on a GPU: recomputation, compiled code and mixed precision against plain torch."""

from __future__ import annotations

import pytest
import torch
from conftest import plan_of
from equal_runs import WITH_DROPOUT, assert_near, assert_same, state_of, tiny
from torch.nn import functional

from trainer4090.build import Run, build
from trainer4090.data.pipeline.loader import Position, training_batches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    # torch 2.11's compiler meets deprecations of Python 3.12 in its own code when it is imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
DEVICE = torch.device("cuda", 0)
MODELS = ["cnn", "resnet", "gpt", "char_lstm"]
PRECISIONS = {
    "fp32": ("precision=fp32",),
    "bf16": ("precision=bf16",),
    # From torch's 65536 a ResNet's first three updates overflow, and updates that are skipped are all equal.
    "amp": ("precision=amp", "precision.initial_scale=1024"),
}
RATE = 2.0**-7
"""Exact in fp32: under loss scaling the rate is a tensor on the device."""


@pytest.fixture(autouse=True)
def _same_kernels() -> None:
    # Without it cuDNN may sum a gradient in another order each time.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # torch's default; a run of precision=fp32 turns it off before it builds anything, which these tests do not.
    torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.reset()


def on_gpu(*words: str) -> Run:
    return build(plan_of(*words), DEVICE, lambda text: None)


def train(run: Run, num_updates: int = 3) -> list[float]:
    batches = training_batches(run.data.train, run.loss.count, 8, 0, Position(0, 0), num_workers=0, pin=False)
    return [float(run.executor.step(next(batches)[0], observe=False).loss) for _ in range(num_updates)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", MODELS)
def test_checkpoint_equals_none(model: str, precision: str) -> None:
    words = tiny(model, *WITH_DROPOUT[model], *PRECISIONS[precision])
    run, checkpointed = on_gpu(*words), on_gpu(*words, "memory=checkpoint")
    torch.manual_seed(1)
    losses = train(run)
    torch.manual_seed(1)
    assert train(checkpointed) == pytest.approx(losses, rel=1e-6)
    assert_near(state_of(run), state_of(checkpointed), 1e-6)  # embeddings add their gradients in any order


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 2.0**-6), ("amp", 2.0**-9)])
@pytest.mark.parametrize("model", ["mlp", *MODELS])
def test_fused_equals_eager(model: str, precision: str, tolerance: float) -> None:
    gentle = ("schedule=constant", "optimizer.lr=0.001", "train.clip_norm=1", *PRECISIONS[precision])
    words = tiny(model, *gentle, *([] if model == "resnet" else ["model.dropout=0"]))
    eager, fused = on_gpu(*words), on_gpu(*words, "kernels=fused")
    assert train(fused) == pytest.approx(train(eager), rel=tolerance)
    assert_near(state_of(eager), state_of(fused), tolerance)


@pytest.mark.parametrize("initial_scale", [2.0**10, 2.0**22])
def test_amp_equals_a_loop_written_by_hand(initial_scale: float) -> None:
    scaling = (f"precision.initial_scale={initial_scale}", "precision.growth_interval=2")
    optimizing = ("optimizer=adamw", f"optimizer.lr={RATE}", "optimizer.weight_decay=0", "schedule=constant")
    words = tiny("cnn", "precision=amp", *scaling, *optimizing)
    ours, reference = on_gpu(*words), on_gpu(*words)
    module, prepare = reference.executor.forward.module, reference.executor.forward.prepare
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=0, fused=True)
    scaler = torch.amp.GradScaler("cuda", initial_scale, growth_interval=2)
    torch.manual_seed(1)
    batches = training_batches(reference.data.train, reference.loss.count, 8, 0, Position(0, 0), 0, False)
    for _ in range(10):
        batch, _ = next(batches)
        with torch.autocast("cuda", torch.float16):
            outputs = module(prepare(batch.inputs.to(DEVICE)))
        loss = functional.cross_entropy(outputs.float(), batch.targets.to(DEVICE), reduction="sum") / len(batch.targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    torch.manual_seed(1)
    train(ours, 10)
    assert_same(state_of(ours), state_of(reference))
    assert ours.executor.state_dict()["update"]["scale"] == scaler.get_scale()
