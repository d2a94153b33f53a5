"""`precision=fp8`: which layers it takes, that their arithmetic is that of float8, and runs around them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import runs
import torch
from conftest import REPOSITORY, plan_of, run_of, train_updates
from equal_runs import AOT, assert_near, assert_same, state_of, tiny
from torch import nn

from trainer4090.build import Run, build
from trainer4090.card import Card, load
from trainer4090.errors import ConfigError, MachineError
from trainer4090.loop import evaluate

FP8 = "precision=fp8"
RTX4090 = load(REPOSITORY / "conf" / "card" / "rtx4090.yaml")
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


def in_float8(run: Run) -> set[str]:
    """Names of the layers that run in float8."""
    named = run.executor.forward.module.named_modules()
    return {name for name, module in named if type(module).__name__ == "Float8Linear"}


GPT_LAYERS = {"attention.query_key_value", "attention.projection", "feed_forward.expansion", "feed_forward.projection"}
UNTIED = ("model.tie=false", "model.vocab_size=112")
LAYERS = {  # words -> layers in float8
    "mlp": (tiny("mlp"), {"blocks.0.linear", "blocks.1.linear"}),
    "odd": (tiny("mlp", "model.hidden=[24,24,16,16]"), {"blocks.3.linear"}),
    "last-taken": (tiny("gpt", *UNTIED, "precision.skip_last=false", "model.num_layers=1"),
                   {"head", *(f"blocks.0.{name}" for name in GPT_LAYERS)}),
    "last-left": (tiny("gpt", *UNTIED, "model.num_layers=1"), {f"blocks.0.{name}" for name in GPT_LAYERS}),
    "tied": (tiny("gpt", "model.vocab_size=112", "precision.skip_last=false", "model.num_layers=1"),
             {f"blocks.0.{name}" for name in GPT_LAYERS}),
    "cell": (tiny("char_lstm", "model.width=16", "model.num_layers=1"),
             {"layers.0.input_projection", "layers.0.cell.recurrent"}),
}  # fmt: skip


@needs_torchao
@pytest.mark.parametrize(("words", "layers"), LAYERS.values(), ids=LAYERS)
def test_layers(words: tuple[str, ...], layers: set[str]) -> None:
    told: list[str] = []
    run = build(plan_of(*words, FP8), torch.device("cpu"), told.append)
    assert in_float8(run) == layers
    assert any(f"precision=fp8: {len(layers)} of " in text for text in told)


def rounded(values: torch.Tensor, recipe: str, summed: int) -> torch.Tensor:
    """`values` as e4m3 holds them when the largest (of all, or along the dimension that is summed) is scaled to 448."""
    largest = values.abs().amax(summed, keepdim=True) if recipe == "rowwise" else values.abs().max()
    scale = 448 / largest.double()
    scale = (scale.log2().floor().exp2() if recipe == "rowwise" else scale).float()
    return (values.float() * scale).to(torch.float8_e4m3fn).float() / scale


@needs_torchao
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_a_layer_is_the_product_of_rounded_numbers(recipe: str) -> None:
    run = run_of(*tiny("mlp", FP8, f"precision.recipe={recipe}"))
    layer = run.executor.forward.module.get_submodule("blocks.0.linear")
    weight, bias = (getattr(layer, name).detach() for name in ("weight", "bias"))
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    with run.executor.forward.context(), torch.no_grad():
        outputs = layer(inputs)
    expected = rounded(inputs, recipe, 1) @ rounded(weight, recipe, 1).T + bias
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), expected, rtol=2.0**-7, atol=2.0**-7)
    plain = inputs @ weight.T + bias
    assert float((outputs.float() - plain).abs().max()) > 2 * float((outputs.float() - expected).abs().max())


@needs_torchao
def test_norms_are_computed_in_fp32_and_the_head_in_bf16() -> None:
    run = run_of(*tiny("gpt", FP8))
    seen: dict[str, torch.dtype] = {}
    for name, module in run.executor.forward.module.named_modules():
        module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: output.dtype}))
    train_updates(run, 1)
    assert seen["norm"] == seen["blocks.0.attention_norm"] == torch.float32
    assert seen["head"] == seen["blocks.0.attention.projection"] == torch.bfloat16


@needs_torchao
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_state_is_that_of_the_bare_model(model: str) -> None:
    run, bare = run_of(*tiny(model, FP8)), run_of(*tiny(model))
    assert_same(state_of(run), state_of(bare))
    train_updates(run, 2)
    trained = run.executor.forward.module.state_dict()
    assert all(type(tensor) is torch.Tensor and tensor.dtype == torch.float32 for tensor in trained.values())
    bare.executor.forward.module.load_state_dict(trained)


@needs_torchao
@pytest.mark.parametrize("words", [("memory=checkpoint",), AOT], ids=["checkpoint", "compiled"])
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_equals_itself_with_other_options(model: str, words: tuple[str, ...]) -> None:
    torch._dynamo.reset()
    words = (*words, "kernels.fused.optimizer=false") if words == AOT else words
    plain, other = run_of(*tiny(model, FP8)), run_of(*tiny(model, FP8, *words))
    assert train_updates(other, 3) == pytest.approx(train_updates(plain, 3), rel=1e-6)
    assert_near(state_of(plain), state_of(other), 1e-5)


@needs_torchao
def test_accuracy_is_that_of_bf16() -> None:
    found = {}
    for precision in ("bf16", "fp8"):
        run = run_of("model=mlp", "model.hidden=[64,64]", "train.epochs=6", f"precision={precision}")
        train_updates(run, run.plan.horizon.total)
        found[precision] = evaluate(run)["accuracy"]
    assert found["bf16"] > 0.9 and abs(found["fp8"] - found["bf16"]) < 0.02


@needs_torchao
def test_resume_is_exact(tmp_path: Path) -> None:
    words = (*runs.COMMON, "model=mlp", "model.hidden=[16]", "model.dropout=0.2", FP8)
    whole, part = (runs.new_folder(tmp_path / name) for name in ("whole", "part"))
    assert runs.train(whole, *words) == 0
    with runs.signalled(29):
        assert runs.train(part, *words) == 143
    assert runs.train(part, "resume=run") == 0
    assert runs.differences(runs.outcome(part), runs.outcome(whole)) == []


def test_a_missing_torchao_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(MachineError, match=r"needs torchao.*; pip install 'trainer4090\[fp8\]'") as error:
        run_of(*tiny("mlp", FP8))
    assert error.value.exit_code == 4


@pytest.mark.parametrize("words", [tiny("cnn"), tiny("mlp", "model.hidden=[24]")], ids=["cnn", "mlp"])
def test_a_model_without_wide_layers_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"linear layers is wide and hidden; use precision=bf16"):
        run_of(*words, FP8)
    run_of(*words, "precision=bf16")


OLDER = replace(RTX4090, device_name="NVIDIA GeForce RTX 3090", compute_capability="8.6", fp8_tflops=None)
CARDS = {  # card, whether it is refused
    "rtx4090": (RTX4090, False),
    "rtx3090": (OLDER, True),
    "newer-without-rates": (replace(OLDER, compute_capability="12.0"), False),
    "nothing-known": (replace(OLDER, compute_capability=None), True),
}


@pytest.mark.parametrize(("card", "refused"), CARDS.values(), ids=CARDS)
def test_a_card_without_float8_is_refused(card: Card, refused: bool) -> None:
    if not refused:
        made = plan_of(*tiny("mlp", FP8), card=card)
        assert card.peak_tflops(made.precision.arithmetic) == card.fp8_tflops and not made.precision.notices
        assert "REPLACE: linear layers in float8, scaled tensorwise, but the last, those with" in made.describe()
        return
    with pytest.raises(ConfigError, match=r"precision: fp8, but NVIDIA.*has no float8; use precision=bf16") as error:
        plan_of(*tiny("mlp", FP8), card=card)
    assert error.value.exit_code == 2
    plan_of(*tiny("mlp", "precision=bf16"), card=card)


def test_a_cpu_says_that_it_emulates() -> None:
    assert "precision: asked fp8, got float8 emulated in float32" in plan_of(*tiny("mlp", FP8)).describe()


def test_layers_of_a_subclass_are_left_alone() -> None:
    """Attention of torch reads the weight of its own kind of linear layer and never calls it."""
    from trainer4090.precision.fp8 import _wide_layers

    attention = nn.MultiheadAttention(16, 2)
    assert _wide_layers(attention) == [] and _wide_layers(nn.Sequential(nn.Linear(16, 16))) == ["0"]
