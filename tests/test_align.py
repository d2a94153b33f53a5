"""`kernels=align` is the same training as `kernels=eager`, and its files are those of the unpadded model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import AOT, assert_near, tiny
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

from trainer4090 import rules
from trainer4090.build import Run, build
from trainer4090.errors import ConfigError
from trainer4090.kernels.layers.aligned import align, file_map
from trainer4090.loop import evaluate

ALIGN = ("kernels=align",)
UNALIGNED = {
    "mlp": ("model.hidden=[17,33]",),
    "cnn": ("model.width=5", "model.dropout=0"),
    "gpt": ("model.width=18", "data.path=text.txt"),
    "gpt_untied": ("model.width=18", "model.tie=false", "data.path=text.txt"),
    "char_lstm": ("model.width=13", "data.path=text.txt"),
    "resnet": (),
}
"""Sizes of which most are no multiples of 8: the digits and synthetic images have 10 classes, the text 27 tokens."""
EVERYTHING = ("optimizer=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.1", "ema.decay=0.9")


@pytest.fixture(autouse=True)
def _text() -> None:
    torch._dynamo.reset()
    counters.clear()
    Path("text.txt").write_text("".join(chr(97 + number * number % 27) for number in range(3000)))


def unaligned(model: str, *words: str) -> tuple[str, ...]:
    return tiny(model.partition("_untied")[0], *UNALIGNED[model], *words)


def parameters_of(run: Run) -> dict[str, torch.Tensor]:
    """Parameters, averages and optimizer state as a file has them."""
    state = run.executor.state_dict()
    found = dict(state["model"])
    found |= {f"average.{name}": average for name, average in (state["average"] or {}).items()}
    for index, values in state["optimizer"]["state"].items():
        found |= {f"optimizer.{index}.{key}": value for key, value in values.items() if value is not None}
    return found


def assert_equal_training(
    model: str, *words: str, tolerance: float, dtype: torch.dtype = torch.float32, align: tuple[str, ...] = ALIGN
) -> Run:
    plain, aligned = (run_of(*unaligned(model, *words, *more), dtype=dtype) for more in ((), align))
    assert train_updates(aligned, 4) == pytest.approx(train_updates(plain, 4), rel=tolerance)
    assert_near(parameters_of(plain), parameters_of(aligned), tolerance)
    assert evaluate(aligned) == pytest.approx(evaluate(plain), rel=tolerance)
    return aligned


SLOW = pytest.param("resnet", marks=pytest.mark.full)
FAST = [model for model in UNALIGNED if model != "resnet"]


@pytest.mark.parametrize("model", [*FAST, SLOW])
def test_equals_the_unpadded_model(model: str) -> None:
    assert_equal_training(model, *EVERYTHING, tolerance=1e-11, dtype=torch.float64)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", FAST)
def test_equals_the_unpadded_model_in_fp32(model: str, optimizer: str) -> None:
    words = (f"optimizer={optimizer}", "optimizer.lr=0.001", "schedule=constant", "train.clip_norm=1")
    assert_equal_training(model, *words, tolerance=1e-6 if optimizer == "sgd" else 1e-5)


WITH_OTHERS = {
    "checkpoint": (("memory=checkpoint",), ALIGN),
    "accumulation": (("train.micro_batch=2",), ALIGN),
    "compiled": ((), ("kernels=[align,fused]", *AOT[1:])),
    "compiled_first": ((), ("kernels=[fused,align]", *AOT[1:])),
    "all": (("memory=checkpoint", "train.micro_batch=4"), ("kernels=[align,fused]", *AOT[1:])),
}


@pytest.mark.parametrize(("words", "kernels"), WITH_OTHERS.values(), ids=WITH_OTHERS)
@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm"])
def test_equals_the_unpadded_model_beside_others(model: str, words: tuple[str, ...], kernels: tuple[str, ...]) -> None:
    assert_equal_training(model, *words, tolerance=1e-10, dtype=torch.float64, align=kernels)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2.0**-6), ("amp", 2.0**-9)])
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "char_lstm"])
def test_equals_the_unpadded_model_in_mixed_precision(model: str, precision: str, tolerance: float) -> None:
    scale = ("precision.initial_scale=1024",) if precision == "amp" else ()
    words = (f"precision={precision}", *scale, "optimizer.lr=0.01", "schedule=constant", "train.clip_norm=1")
    plain, aligned = (run_of(*unaligned(model, *words, *more)) for more in ((), ALIGN))
    assert train_updates(aligned, 3) == pytest.approx(train_updates(plain, 3), rel=tolerance)
    assert_near(plain.executor.state_dict()["model"], aligned.executor.state_dict()["model"], tolerance)


def padding_of(tensor: torch.Tensor, true: torch.Size) -> torch.Tensor:
    outside = torch.ones(tensor.shape, dtype=torch.bool)
    outside[tuple(slice(size) for size in true)] = False
    return tensor[outside]


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", FAST)
def test_padding_stays_exactly_zero(model: str, optimizer: str, precision: str) -> None:
    words = (f"optimizer={optimizer}", "optimizer.weight_decay=0.1", "ema.decay=0.5", f"precision={precision}")
    plain, aligned = run_of(*unaligned(model, *words)), run_of(*unaligned(model, *words, *ALIGN))
    train_updates(aligned, 4)
    assert aligned.executor.average is not None
    true = {name: parameter.shape for name, parameter in plain.executor.forward.module.named_parameters()}
    averages, grown = aligned.executor.average.state_dict(), 0
    for name, parameter in aligned.executor.forward.module.named_parameters():
        assert all(size % 8 == 0 for size in parameter.shape[:2]) or parameter.shape == true[name]
        of_optimizer = aligned.executor._optimizer.state[parameter].values()
        like = [each for each in of_optimizer if isinstance(each, torch.Tensor) and each.ndim]
        for tensor in (parameter.detach(), parameter.grad, averages[name], *like):
            assert tensor is not None and tensor.shape == parameter.shape
            grown += padding_of(tensor, true[name]).numel()
            assert not padding_of(tensor, true[name]).any()
    assert grown > 0


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "char_lstm"])
def test_a_state_goes_on_under_the_other_kernels(model: str) -> None:
    words = unaligned(model, *EVERYTHING)
    plain, aligned = run_of(*words, dtype=torch.float64), run_of(*words, *ALIGN, dtype=torch.float64)
    train_updates(aligned, 3)
    saved = deepcopy(parameters_of(aligned))
    again = run_of(*words, *ALIGN, dtype=torch.float64)
    for source, target in ((aligned, plain), (plain, again)):
        target.executor.load_state_dict(deepcopy(source.executor.state_dict()))
        assert not runs.differences(parameters_of(target), saved)
    losses = train_updates(aligned, 2)
    assert train_updates(again, 2) == losses
    assert train_updates(plain, 2) == pytest.approx(losses, rel=1e-10)


def test_a_file_is_the_unpadded_models(tmp_path: Path) -> None:
    """Names, shapes and bytes; resumed under either kernels, evaluated, generated from."""
    folder = runs.new_folder(tmp_path / "work")
    changed = ("model.width=18", "ema.decay=0.9", "optimizer=adamw", "schedule=constant", "train.eval_every=2")
    words = (*(word for word in runs.GPT if not word.startswith("model.width")), *changed)
    assert runs.train(folder, *words, "train.steps=2", *ALIGN) == 0
    saved = runs.state(folder)["executor"]
    elsewhere = (word.replace("text.txt", str(folder / "text.txt")) for word in words)
    bare = run_of(*elsewhere).executor.forward.module.state_dict()
    assert [(name, each.shape) for name, each in saved["model"].items()] == [
        (name, each.shape) for name, each in bare.items()
    ]
    for tensor in (*saved["model"].values(), *saved["average"].values()):
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()
    assert saved["model"]["head.weight"].data_ptr() == saved["model"]["token_embedding.weight"].data_ptr()
    for steps, kernels in ((4, "eager"), (6, "align")):
        assert runs.train(folder, *words, f"train.steps={steps}", "resume=last", f"kernels={kernels}") == 0
    assert runs.train(folder, "evaluate", "run=run", "device=cpu") == 0
    assert runs.train(folder, "generate", "run=run", "device=cpu", "prompt=ab", "tokens=5") == 0


class Reading(nn.Module):
    """Uses the weight of a layer past the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self.layer.weight, self.layer.bias) + self.layer(inputs)


class Tied(nn.Module):
    """Two linear layers of one weight, each with its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs))


class Attention(nn.Module):
    """torch's own, whose projection is used by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs, inputs, inputs)[0]


LAYERS: dict[str, tuple[Any, tuple[int, ...], tuple[int, int]]] = {  # layer, shape of its input, (padded, left)
    "linear": (lambda: nn.Linear(5, 3), (2, 4, 5), (1, 0)),
    "linear_without_bias": (lambda: nn.Linear(5, 8, bias=False), (2, 5), (1, 0)),
    "linear_that_fits": (lambda: nn.Linear(8, 16), (2, 8), (0, 0)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3, padding=1), (2, 3, 7), (1, 0)),
    "conv2d": (lambda: nn.Conv2d(3, 5, 3, stride=2), (2, 3, 7, 7), (1, 0)),
    "conv2d_without_a_batch": (lambda: nn.Conv2d(3, 5, 3), (3, 7, 7), (1, 0)),
    "conv2d_reflecting": (lambda: nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"), (2, 3, 7, 7), (1, 0)),
    "conv3d": (lambda: nn.Conv3d(3, 5, 2, bias=False), (2, 3, 4, 4, 4), (1, 0)),
    "grouped": (lambda: nn.Conv2d(6, 6, 3, groups=3), (2, 6, 7, 7), (0, 1)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 3), (2, 3, 7, 7), (0, 1)),
    "before_a_norm": (lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)), (2, 3, 7, 7), (1, 0)),
    "weight_normalised": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)), (2, 5), (0, 1)),
    "read_past_the_layer": (Reading, (2, 5), (1, 0)),
    "tied": (Tied, (2, 5), (2, 0)),
    "attention": (Attention, (2, 4, 6), (0, 1)),
}


@pytest.mark.parametrize(("build", "shape", "counts"), LAYERS.values(), ids=LAYERS)
def test_a_layer_computes_what_it_did(build: Any, shape: tuple[int, ...], counts: tuple[int, int]) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(shape, dtype=torch.float64)
    plain = build().double()
    torch.manual_seed(0)
    torch.randn(shape, dtype=torch.float64)
    aligned = build().double()
    done = align(aligned, 8)
    assert (len(done.padded), len(done.left)) == counts
    both = [(module, inputs.clone().requires_grad_()) for module in (plain, aligned)]
    outputs = [module(entry) for module, entry in both]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-14)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(both[1][1].grad, both[0][1].grad, rtol=0, atol=1e-13)
    names = file_map(aligned)
    for (name, one), (other_name, other) in zip(plain.named_parameters(), aligned.named_parameters(), strict=True):
        assert name == other_name and other.grad is not None and one.grad is not None
        torch.testing.assert_close(names.to_file(name, other.grad), one.grad, rtol=0, atol=1e-13)
        assert torch.equal(names.from_file(name, one.detach()), other.detach())


def test_the_plan_and_the_log_say_what_is_padded() -> None:
    said: list[str] = []
    words = unaligned("cnn", *ALIGN, "kernels.align.multiple=16")
    assert "zeros to multiples of 16" in plan_of(*words).describe()
    build(plan_of(*words), torch.device("cpu"), said.append)
    assert "kernels.align: 4 of 4 layers padded to multiples of 16, 0 fit already, 0 left as they are" in said


def test_an_optimizer_that_looks_at_whole_matrices_is_refused() -> None:
    made = plan_of(*unaligned("mlp", *ALIGN))
    with pytest.raises(ConfigError, match="sgd beside kernels=align") as error:
        rules.check(replace(made, optimizer=replace(made.optimizer, elementwise=False)))
    assert error.value.exit_code == 2


def test_a_multiple_is_positive() -> None:
    with pytest.raises(ConfigError, match=r"kernels\.align\.multiple: 0; allowed is an integer at least 1"):
        plan_of(*ALIGN, "kernels.align.multiple=0")
