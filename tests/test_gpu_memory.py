"""Memory options on a GPU: equal training, less memory, and nobody waits for the device."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from conftest import plan_of
from equal_runs import WITH_DROPOUT, assert_same, batch_of, state_of, tiny

from trainer4090.build import Run, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    # torch 2.11's compiler meets deprecations of Python 3.12 in its own code when it is imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
DEVICE = torch.device("cuda", 0)
LARGE = (
    *("model=gpt_tiny", "model.num_layers=8", "model.width=256", "model.num_heads=4", "data=text", "data.length=256"),
    *("train.batch_size=16", "train.epochs=null", "train.steps=100", "optimizer=adamw"),
)
"""Activations of a few hundred MiB, so that buffers and caches of a few MiB do not show."""
OFFLOAD = ("memory=offload", "memory.offload.min_mib=0.25", "memory.offload.in_flight_mib=16")


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    yield
    torch.use_deterministic_algorithms(False)


def on_gpu(*words: str) -> Run:
    return build(plan_of(*words), DEVICE, lambda text: None)


def updates(run: Run, num_updates: int, batch_size: int, strict_after: int | None = None) -> list[float]:
    """Losses of updates on always the same batch; from `strict_after` on, waiting for the device is an error."""
    inputs, targets = run.data.train.fetch(torch.arange(batch_size), 0)
    batch = batch_of(inputs, targets, targets.numel())
    torch.manual_seed(1)
    outputs = []
    try:
        for number in range(num_updates):
            if number == strict_after:
                torch.cuda.set_sync_debug_mode("error")
            outputs.append(run.executor.step(batch, observe=number % 2 == 0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [float(output.loss) for output in outputs]


def peak_mib(batch_size: int, *words: str) -> float:
    """Peak of the second and third update, above what the built run holds before the first."""
    run = on_gpu(*LARGE, f"train.batch_size={batch_size}", *words)
    gc.collect()
    before = torch.cuda.memory_allocated()
    updates(run, 1, batch_size)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    updates(run, 2, batch_size)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


SELECT = ("memory.checkpoint.every=null", "memory.checkpoint.select=[matmul,convolution]")
"""Without attention, which draws dropout itself and would not draw it again."""
CASES = {
    "offload": ("memory=offload", "memory.offload.min_mib=0", "memory.offload.in_flight_mib=0.05"),
    "offload_amp": ("precision=amp", "precision.initial_scale=1024", *OFFLOAD, "memory.offload.min_mib=0"),
    "checkpoint_offload": ("memory=[checkpoint,offload]", "memory.offload.min_mib=0"),
    "offload_compiled": ("kernels=fused", "memory=offload", "memory.offload.min_mib=0"),
    "select": ("memory=checkpoint", *SELECT),
    "select_offload": ("memory=[checkpoint,offload]", *SELECT, "memory.offload.min_mib=0"),
    "step_in_backward": ("memory=step_in_backward",),
    "step_in_backward_fused": ("memory=step_in_backward", "kernels=fused", "optimizer=adamw"),
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm"])
def test_equals_none_exactly(model: str, words: tuple[str, ...]) -> None:
    words = tiny(model, *WITH_DROPOUT[model], *words)
    plain = on_gpu(*(word for word in words if not word.startswith("memory")))
    saving = on_gpu(*words)
    assert updates(saving, 4, 8) == updates(plain, 4, 8)
    assert_same(state_of(saving), state_of(plain))


@pytest.mark.parametrize("words", [OFFLOAD, ("memory=step_in_backward",)], ids=["offload", "step_in_backward"])
def test_large_tensors_race_with_nobody(words: tuple[str, ...]) -> None:
    """Copies of MiBs last longer than the kernels beside them: whoever does not wait reads what is not there yet."""
    plain, saving = on_gpu(*LARGE), on_gpu(*LARGE, *words)
    assert updates(saving, 6, 16) == updates(plain, 6, 16)
    assert_same(state_of(saving), state_of(plain))


STEADY = {
    "offload": OFFLOAD,
    "step_in_backward": ("memory=step_in_backward",),
    "lowbit": ("memory=lowbit",),
    "lowbit_amp": ("memory=lowbit", "precision=amp", "kernels=fused", "kernels.fused.compile=false"),
    "three": ("memory=[checkpoint,offload,lowbit]", "memory.offload.min_mib=0.25"),
}


@pytest.mark.parametrize("words", STEADY.values(), ids=STEADY)
def test_an_update_never_waits_for_the_device(words: tuple[str, ...]) -> None:
    torch.use_deterministic_algorithms(False)  # some of them read a size back
    updates(on_gpu(*LARGE, *words), 8, 16, strict_after=4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lowbit_steps_in_backward_as_after_it(precision: str) -> None:
    words = tiny("gpt", "optimizer=adamw", f"precision={precision}", "memory.lowbit.min_elements=1")
    narrow, both = on_gpu(*words, "memory=lowbit"), on_gpu(*words, "memory=[lowbit,step_in_backward]")
    assert updates(narrow, 4, 8) == updates(both, 4, 8)
    assert_same(state_of(narrow), state_of(both))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_lowbit_stays_near(optimizer: str) -> None:
    words = tiny("gpt", f"optimizer={optimizer}", "optimizer.lr=0.01", "precision=amp", "model.dropout=0")
    plain, narrow = on_gpu(*words), on_gpu(*words, "memory=lowbit", "memory.lowbit.min_elements=1")
    losses = updates(plain, 20, 8), updates(narrow, 20, 8)
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_select_lowers_the_peak() -> None:
    words = ("memory=checkpoint", "memory.checkpoint.every=null", "memory.checkpoint.select=[matmul,attention]")
    assert peak_mib(16, *words) < 0.95 * peak_mib(16)


def test_offload_lowers_the_peak() -> None:
    assert peak_mib(16, *OFFLOAD) < 0.6 * peak_mib(16)


def test_step_in_backward_lowers_the_peak_by_the_gradients() -> None:
    """Of a short sample activations are few."""
    module = on_gpu(*LARGE).executor.forward.module
    gradients = sum(each.nbytes for each in module.parameters()) / 2**20
    del module
    whole, stepped = (peak_mib(1, "data.length=16", f"memory={memory}") for memory in ("none", "step_in_backward"))
    assert stepped < whole - 0.5 * gradients
