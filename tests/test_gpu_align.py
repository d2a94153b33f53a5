"""Padded layers and heads in chunks on a GPU: equal training, without waiting, and in less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs
import torch
from conftest import plan_of
from equal_runs import assert_near, state_of, tiny
from test_gpu_run import assert_never_waits
from test_gpu_run import on_gpu as words_on_gpu

from trainer4090.build import Run, build
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.kernels.layers.aligned import file_map
from trainer4090.loop import evaluate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    # torch 2.11's compiler meets deprecations of Python 3.12 in its own code when it is imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
DEVICE = torch.device("cuda", 0)
GENTLE = ("schedule=constant", "optimizer.lr=0.001", "train.clip_norm=1")
PRECISIONS = {
    "fp32": (("precision=fp32",), 1e-4),
    "bf16": (("precision=bf16",), 2.0**-6),
    "amp": (("precision=amp", "precision.initial_scale=1024"), 2.0**-9),
}
UNALIGNED = {
    "mlp": ("model.hidden=[17,33]",),
    "cnn": ("model.width=5", "model.dropout=0"),
    "gpt": ("model.width=18", "model.vocab_size=301"),
    "char_lstm": ("model.width=13", "model.vocab_size=301"),
}
CHUNKED = "kernels.linear_cross_entropy.chunk_tokens=48"
KERNELS = {
    "align": (["mlp", "cnn", "gpt", "char_lstm"], ("kernels=align",)),
    "align_fused": (["mlp", "cnn", "gpt"], ("kernels=[align,fused]",)),
    "linear_cross_entropy": (["gpt", "char_lstm"], ("kernels=linear_cross_entropy", CHUNKED)),
    "all": (["gpt"], ("kernels=[align,linear_cross_entropy,fused]", CHUNKED)),
}
CASES = [(name, model, kernels) for name, (models, kernels) in KERNELS.items() for model in models]


@pytest.fixture(autouse=True)
def _same_kernels() -> None:
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch._dynamo.reset()


def on_gpu(*words: str) -> Run:
    return build(plan_of(*words), DEVICE, lambda text: None)


def train(run: Run, num_updates: int) -> list[float]:
    size = run.plan.batching.batch_size
    batches = training_batches(run.data.train, run.loss.count, size, 0, Position(0, 0), num_workers=0, pin=False)
    return [float(run.executor.step(next(batches)[0], observe=False).loss) for _ in range(num_updates)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("model", "kernels"),
    [(model, kernels) for _, model, kernels in CASES],
    ids=[f"{case[0]}-{case[1]}" for case in CASES],
)
def test_equals_eager(model: str, kernels: tuple[str, ...], precision: str) -> None:
    more, tolerance = PRECISIONS[precision]
    words = tiny(model, *UNALIGNED[model], *GENTLE, *more)
    eager, other = on_gpu(*words), on_gpu(*words, *kernels)
    assert train(other, 3) == pytest.approx(train(eager, 3), rel=tolerance)
    assert_near(state_of(eager), other.executor.state_dict()["model"], tolerance)


@pytest.mark.parametrize("model", UNALIGNED)
def test_padding_stays_exactly_zero_under_a_loss_scale(model: str) -> None:
    """From a scale at which the first updates overflow: infinities meet the zeros of the padding."""
    scale = ("precision=amp", "precision.initial_scale=16777216")
    run = on_gpu(*tiny(model, *UNALIGNED[model], *scale, "optimizer=adamw", "optimizer.lr=0.01", "kernels=align"))
    train(run, 12)
    module = run.executor.forward.module
    names = file_map(module)
    for name, parameter in module.named_parameters():
        own = parameter.detach()
        assert own.isfinite().all()
        assert torch.equal(names.from_file(name, names.to_file(name, own)), own)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize(
    "kernels", ["align", "linear_cross_entropy", "[align,linear_cross_entropy]"], ids=lambda words: words
)
def test_steady_loop_never_waits(kernels: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = (CHUNKED,) if "linear" in kernels else ()
    words = ("model.width=18", f"kernels={kernels}", f"precision={precision}", *chunks)
    assert_never_waits(runs.new_folder(tmp_path / "work"), monkeypatch, *words_on_gpu(runs.GPT), *words)


def peaks_of(*kernels: str) -> tuple[float, float]:
    """GiB allocated at most in two updates of GPT-2 small, and in an evaluation after them."""
    words = ("model=gpt2_124m", "data=text", "data.length=1024", "precision=bf16", "train.batch_size=16")
    run = on_gpu(*words, "train.epochs=null", "train.steps=100", *kernels)
    peaks = []
    for work in (lambda: train(run, 2), lambda: evaluate(run)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        work()
        peaks.append(torch.cuda.max_memory_allocated() / 2**30)
    return peaks[0], peaks[1]


def test_a_head_in_chunks_needs_less_memory() -> None:
    """Of 12 bytes for each of 823 million logits, 9.2 GiB, an eighth is left."""
    whole, chunked = peaks_of(), peaks_of("kernels=linear_cross_entropy")
    print(f"GiB allocated, whole and in chunks: update {whole[0]:.2f} {chunked[0]:.2f}, "
          f"evaluation {whole[1]:.2f} {chunked[1]:.2f}")  # fmt: skip
    assert chunked[0] < whole[0] - 5
    assert chunked[1] < whole[1] - 5
