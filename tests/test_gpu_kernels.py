"""Precisions and kernels of a GPU alone: float8 products, backends of attention, CUDA graphs of the compiler."""

from __future__ import annotations

import pytest
import torch
from conftest import REPOSITORY, plan_of
from equal_runs import assert_near, assert_same, state_of, tiny
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from trainer4090.build import Run, build
from trainer4090.card import load
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.loop import evaluate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    # Of Python 3.12 in torch 2.11's compiler, and of torch's autocast in torchao.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # Of the compiler's own graphs, which begin with an empty one (torch 2.11).
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]
DEVICE = torch.device("cuda", 0)
H200 = load(REPOSITORY / "conf" / "card" / "h200.yaml")
GENTLE = ("schedule=constant", "optimizer.lr=0.001", "train.clip_norm=1")
WIDE = ("model.width=128", "model.num_heads=2", "model.dropout=0", "data.length=64")
"""Heads of 64 numbers, which every backend of attention takes."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch._dynamo.reset()
    counters.clear()


def on_gpu(*words: str) -> Run:
    return build(plan_of(*words, card=H200), DEVICE, lambda text: None)


def train(run: Run, num_updates: int = 3) -> list[float]:
    batches = training_batches(run.data.train, run.loss.count, 8, 0, Position(0, 0), num_workers=0, pin=False)
    return [float(run.executor.step(next(batches)[0], observe=False).loss) for _ in range(num_updates)]


@pytest.mark.parametrize("kernels", ["eager", "fused"])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_float8_trains_as_bf16(recipe: str, kernels: str) -> None:
    pytest.importorskip("torchao")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this card has no float8")
    words = tiny("gpt", *GENTLE, *WIDE, f"kernels={kernels}")
    bf16, fp8 = on_gpu(*words, "precision=bf16"), on_gpu(*words, "precision=fp8", f"precision.recipe={recipe}")
    assert train(fp8, 5) == pytest.approx(train(bf16, 5), rel=0.01)
    assert {tensor.dtype for tensor in state_of(fp8).values()} == {torch.float32}


def test_float8_takes_a_tail_of_any_size() -> None:
    pytest.importorskip("torchao")
    run = on_gpu(*tiny("mlp", *GENTLE, "precision=fp8", "data.limit=27"))
    assert all(loss == loss for loss in train(run, 4))  # of 8, 8, 8 and 3 samples
    assert evaluate(run)["loss"] < 10


def test_fp16_sums_stay_off_on_a_card_that_gains_nothing() -> None:
    words = tiny("mlp", *GENTLE, "precision=amp")
    plain, asked = on_gpu(*words), on_gpu(*words, "precision.accumulate=fp16")
    assert train(plain) == train(asked)
    assert_same(state_of(plain), state_of(asked))


OPERATIONS = {
    "flash": "aten::_scaled_dot_product_flash_attention",
    "efficient": "aten::_scaled_dot_product_efficient_attention",
    "cudnn": "aten::_scaled_dot_product_cudnn_attention",
    "math": "aten::_scaled_dot_product_attention_math",
}


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
@pytest.mark.parametrize("backend", OPERATIONS)
def test_the_backend_of_attention_is_active(backend: str, memory: str) -> None:
    words = tiny("gpt", *GENTLE, *WIDE, "precision=bf16", f"memory={memory}")
    plain, run = on_gpu(*words), on_gpu(*words, "kernels=sdpa", f"kernels.sdpa.backend={backend}")
    losses = train(plain)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        assert train(run) == pytest.approx(losses, rel=2.0**-6)
    seen = {event.key for event in trace.key_averages()}
    assert {name for name, operation in OPERATIONS.items() if operation in seen} == {backend}
    assert_near(state_of(plain), state_of(run), 2.0**-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
def test_graphs_of_the_compiler_equal_eager(model: str, precision: str) -> None:
    from torch._inductor.cudagraph_trees import get_manager

    scale = ("precision.initial_scale=1024",) if precision == "amp" else ()
    words = tiny(model, *GENTLE, f"precision={precision}", "model.dropout=0", "ema.decay=0.9", *scale)
    eager, run = on_gpu(*words), on_gpu(*words, "kernels=fused", "kernels.fused.mode=reduce-overhead")
    tolerance = {"fp32": 1e-4, "bf16": 2.0**-6, "amp": 2.0**-9}[precision]
    for _ in range(2):  # before an evaluation and after it
        assert train(run, 4) == pytest.approx(train(eager, 4), rel=tolerance)
        assert evaluate(run)["loss"] == pytest.approx(evaluate(eager)["loss"], rel=tolerance)
    assert_near(state_of(eager), state_of(run), tolerance)
    assert get_manager(0, create_if_none_exists=False) is not None
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
def test_script_equals_eager(model: str, precision: str) -> None:
    scale = ("precision.initial_scale=1024",) if precision == "amp" else ()
    words = tiny(model, *GENTLE, f"precision={precision}", "model.dropout=0", *scale)
    eager, run = on_gpu(*words), on_gpu(*words, "kernels=script")
    tolerance = {"fp32": 1e-4, "bf16": 2.0**-6, "amp": 2.0**-9}[precision]
    assert train(run, 4) == pytest.approx(train(eager, 4), rel=tolerance)
    assert_near(state_of(eager), state_of(run), tolerance)
