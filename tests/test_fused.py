"""`kernels=fused` is the same training as `kernels=eager` at the same precision, compiled once."""

from __future__ import annotations

import sysconfig
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, plan_of, run_of, train_updates
from equal_runs import AOT, assert_near, state_of, tiny
from torch._dynamo.utils import counters

from trainer4090.build import Run, prepared
from trainer4090.card import CPU, Card, load
from trainer4090.errors import ConfigError, MachineError
from trainer4090.kernels import fused
from trainer4090.kernels.fused import require_compiler
from trainer4090.loop import evaluate
from trainer4090.records import Part, Site, Stage

RTX4090 = load(REPOSITORY / "conf" / "card" / "rtx4090.yaml")
TOLERANCE = {"fp32": 1e-5, "bf16": 2.0**-7, "amp": 2.0**-10}
"""Of losses and parameters after three updates: the dtype's distance between neighbours, for fp32 a hundred of them."""
GENTLE = ("schedule=constant", "optimizer.lr=0.01", "train.clip_norm=1")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()
    counters.clear()


def without_dropout(name: str, *words: str) -> tuple[str, ...]:
    """Compiled dropout draws the same mask in the same place with `aot_eager` only."""
    return tiny(name, *GENTLE, *words, *([] if name == "resnet" else ["model.dropout=0"]))


def assert_equal_training(
    words: tuple[str, ...], kernels: tuple[str, ...], tolerance: float, dtype: torch.dtype = torch.float32
) -> None:
    eager, fused = run_of(*words, dtype=dtype), run_of(*words, *kernels, dtype=dtype)
    losses, fused_losses = train_updates(eager, 3), train_updates(fused, 3)
    assert counters["stats"]["unique_graphs"] >= 1
    assert fused_losses == pytest.approx(losses, rel=tolerance)
    assert_near(state_of(eager), state_of(fused), tolerance)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "char_lstm"])
def test_equals_eager(model: str, precision: str) -> None:
    assert_equal_training(without_dropout(model, f"precision={precision}"), AOT, TOLERANCE[precision])


@pytest.mark.full
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "char_lstm"])
def test_equals_eager_with_generated_code(model: str) -> None:
    assert_equal_training(without_dropout(model), ("kernels=fused",), TOLERANCE["fp32"])


@pytest.mark.full
@pytest.mark.parametrize("kernels", [AOT, ("kernels=fused",)], ids=["aot_eager", "inductor"])
def test_equals_eager_on_resnet(kernels: tuple[str, ...]) -> None:
    """In fp64: BatchNorm over eight single pixels makes a rounding error a thousand times larger in three updates."""
    assert_equal_training(without_dropout("resnet"), kernels, 1e-9, torch.float64)


def test_each_autocast_dtype_has_its_own_key_in_the_compilers_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 hands the graph of one dtype to the other; `test_gpu_training.py` meets that with generated code."""
    keys = []

    def compiled(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        keys.append(torch.compiler.config.cache_key_tag)
        return graph.forward

    monkeypatch.setattr(fused, "require_compiler", lambda device_type: None)
    lookup = torch._dynamo.lookup_backend
    found = {"inductor": compiled}
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: found.get(name) or lookup(name))
    for precision in ("fp32", "bf16", "amp"):
        train_updates(run_of(*tiny("mlp", "kernels=fused", f"precision={precision}")), 1)
    models, losses = keys[::2], keys[1::2]  # a loss is computed outside autocast
    assert len(set(models)) == 3 and len(set(losses)) == 1
    assert torch.compiler.config.cache_key_tag == ""


RAGGED = {"mlp": ("data.limit=27",), "cnn": ("data.limit=27",), "resnet": ("data.num_train=27",),
          "gpt": ("data.path=text.txt",), "char_lstm": ("data.path=text.txt",)}  # fmt: skip
"""Epochs of 8, 8, 8 and 3 samples, or another tail."""
SLOW = pytest.param("resnet", marks=pytest.mark.full)


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
@pytest.mark.parametrize("model", ["mlp", "cnn", SLOW, "gpt", "char_lstm"])
def test_compiles_twice_at_most_for_training(model: str, memory: str, tmp_path: Path) -> None:  # case B21
    (tmp_path / "text.txt").write_text("abcdefgh" * 68)
    run = run_of(*tiny(model, f"memory={memory}", *AOT, *RAGGED[model]))
    assert run.plan.evidence.data.num_train % 8 != 0
    per_epoch = run.plan.horizon.per_epoch
    train_updates(run, per_epoch)
    training_graphs = counters["stats"]["unique_graphs"]
    evaluate(run)
    all_graphs = counters["stats"]["unique_graphs"]
    for _ in range(2):
        train_updates(run, per_epoch)
        evaluate(run)
    assert counters["stats"]["unique_graphs"] == all_graphs
    assert 1 <= training_graphs <= 2 * (len(compile_units(run)) + 1)  # the loss is a unit too


def compile_units(run: Run) -> list[Any]:
    return [module for module in run.executor.forward.module.modules() if module._compiled_call_impl is not None]


CHANNELS_LAST = ("kernels=fused", "kernels.fused.compile=false")


def in_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_is_for_tensors_of_four_dimensions() -> None:  # case B24
    module = run_of(*tiny("cnn", *CHANNELS_LAST)).executor.forward.module
    weights = [parameter for parameter in module.parameters() if parameter.ndim == 4]
    assert weights and all(map(in_channels_last, weights))
    shapes = [(2, 3, 4, 4), (2, 3, 4), (2, 3, 4, 4, 4), (2, 3)]
    inputs = prepared([torch.zeros(shape) for shape in shapes], lambda inputs: inputs, torch.float32, True)
    assert in_channels_last(inputs[0]) and all(tensor.is_contiguous() for tensor in inputs[1:])


def test_channels_last_weights_load_into_a_contiguous_model() -> None:
    words = without_dropout("cnn")
    fused, plain = run_of(*words, *CHANNELS_LAST), run_of(*words)
    train_updates(fused, 2)
    plain.executor.load_state_dict(deepcopy(fused.executor.state_dict()))  # as from a file: no shared memory
    weights = [parameter for parameter in plain.executor.forward.module.parameters() if parameter.ndim == 4]
    assert all(weight.is_contiguous() for weight in weights)
    assert_near(state_of(fused), state_of(plain), 0.0)
    assert train_updates(plain, 3) == pytest.approx(train_updates(fused, 3), rel=1e-5)


def test_channels_last_for_tokens_is_refused_with_a_notice() -> None:
    run = run_of(*tiny("gpt", "kernels=fused", "kernels.fused.compile=false", "kernels.fused.channels_last=true"))
    assert "kernels.fused.channels_last: asked true, got false" in run.plan.describe()
    assert not run.plan.kernels.channels_last


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_fused_optimizers_equal_the_default_ones(model: str, optimizer: str) -> None:
    words = tiny(model, f"optimizer={optimizer}", "optimizer.lr=0.01")
    default, fused = run_of(*words), run_of(*words, "kernels=fused", "kernels.fused.compile=false")
    assert not default.plan.fused_optimizer and fused.plan.fused_optimizer
    assert train_updates(fused, 5) == pytest.approx(train_updates(default, 5), rel=1e-5)
    assert_near(state_of(default), state_of(fused), 1e-5)


COMPILERS = {  # device, environment, programs that are installed, what the message says (None: it is fine)
    "cpu": ("cpu", {}, {"g++"}, None),
    "cpu_none": ("cpu", {}, {"gcc"}, "apt-get install g++"),
    "cpu_variable": ("cpu", {"CXX": "other"}, {"other"}, None),
    "cpu_variable_wrong": ("cpu", {"CXX": "other"}, {"g++"}, "the compiler other is not installed"),
    "cuda": ("cuda", {}, {"gcc"}, None),
    "cuda_clang": ("cuda", {}, {"clang"}, None),
    "cuda_none": ("cuda", {}, {"g++"}, "apt-get install gcc"),
}


@pytest.mark.parametrize(("device", "environment", "programs", "text"), COMPILERS.values(), ids=COMPILERS)
def test_a_missing_compiler_is_an_error_of_the_machine(
    device: str, environment: dict[str, str], programs: set[str], text: str | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for program in programs:
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    if text is None:
        require_compiler(device)
        return
    with pytest.raises(MachineError) as error:
        require_compiler(device)
    assert error.value.exit_code == 4 and text in str(error.value)


def test_missing_headers_of_python_are_an_error_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(MachineError, match=r"apt-get install python3\.\d+-dev"):
        require_compiler("cpu")


def test_no_compiler_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MachineError, match=r"kernels\.fused"):
        run_of(*tiny("mlp", "kernels=fused"))
    run_of(*tiny("mlp", *AOT))


MODES = {  # words, card, what is left of the mode, asked and got of a notice
    "default": (("mode=default",), CPU, "default", None),
    "reduce-cpu": (("mode=reduce-overhead",), CPU, "default", "asked reduce-overhead, got default: a CPU has no CUDA"),
    "autotune-cpu": (
        ("mode=max-autotune",),
        CPU,
        "max-autotune-no-cudagraphs",
        "asked max-autotune, got max-autotune-",
    ),
    "autotune-plain": (("mode=max-autotune-no-cudagraphs",), CPU, "max-autotune-no-cudagraphs", None),
    "reduce-gpu": (("mode=reduce-overhead",), RTX4090, "reduce-overhead", None),
    "autotune-gpu": (("mode=max-autotune",), RTX4090, "max-autotune", None),
    "aot": (("mode=reduce-overhead", "backend=aot_eager"), RTX4090, "default", "modes are Inductor's"),
    "not-compiled": (("mode=reduce-overhead", "compile=false"), RTX4090, None, None),
}


@pytest.mark.parametrize(("words", "card", "mode", "says"), MODES.values(), ids=MODES)
def test_what_is_left_of_a_mode(words: tuple[str, ...], card: Card, mode: str | None, says: str | None) -> None:
    made = plan_of(*tiny("mlp", "kernels=fused", *(f"kernels.fused.{word}" for word in words)), card=card)
    compiling = [step.label for step in made.transforms if step.stage is Stage.COMPILE]
    assert all(label.endswith(f"mode {mode}") or mode == "default" for label in compiling)
    assert len(compiling) == (mode is not None)
    graphs = mode in ("reduce-overhead", "max-autotune")
    assert made.kernels.cuda_graphs_inside == graphs == bool(made.settings.environment)
    assert [str(says) in str(notice) for notice in made.kernels.notices] == [True] * (says is not None)


def test_a_mode_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def compiled(graph: torch.fx.GraphModule, inputs: Any, config_patches: dict[str, Any]) -> Any:
        given.append(config_patches)
        return graph.forward

    monkeypatch.setattr(fused, "require_compiler", lambda device_type: None)
    lookup = torch._dynamo.lookup_backend
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: {"inductor": compiled}.get(name) or lookup(name))
    for mode in ("default", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        train_updates(run_of(*tiny("mlp", "kernels=fused", f"kernels.fused.mode={mode}")), 1)
    models, losses = given[::2], given[1::2]
    assert models[0] == {} and models[1]["max_autotune"] is True and "triton.cudagraphs" not in models[1]
    run = run_of(*tiny("mlp", "kernels=fused"))
    parts = (Part(run.executor.forward.module, ()),)
    torch._dynamo.reset()
    fused.compile_parts(parts, Site(0, torch.device("cpu")), "inductor", "reduce-overhead")
    train_updates(run, 1)
    assert given[4] == {"triton.cudagraphs": True}
    assert losses[0] == {} and losses[1] == models[1]


@pytest.mark.full
def test_a_mode_is_on_where_code_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    seen, run = [], GraphLowering.run

    def spied(self: GraphLowering, *inputs: Any) -> Any:
        seen.append(config.max_autotune)
        return run(self, *inputs)

    monkeypatch.setattr(GraphLowering, "run", spied)
    mode = "kernels.fused.mode=max-autotune-no-cudagraphs"
    uncached = config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False)
    with uncached[0], uncached[1]:
        assert_equal_training(without_dropout("mlp"), ("kernels=fused", mode), TOLERANCE["fp32"])
    assert seen and all(seen) and not config.max_autotune


GRAPHS = ("kernels=fused", "kernels.fused.mode=reduce-overhead")


def test_graphs_of_the_compiler_refuse_accumulation() -> None:
    words = (*GRAPHS, "train.batch_size=8")
    with pytest.raises(ConfigError, match=r"use kernels\.fused\.mode=default, or train\.micro_batch=8"):
        plan_of(*tiny("mlp", *words), "train.micro_batch=4", card=RTX4090)
    plan_of(*tiny("mlp", *words), "train.micro_batch=8", card=RTX4090)
    plan_of(*tiny("mlp", *words), "train.micro_batch=4", card=CPU)  # with a notice that there are no graphs


@pytest.mark.parametrize(
    ("model", "word", "expected"),
    [("cnn", "auto", True), ("cnn", "false", False), ("gpt", "auto", False), ("gpt", "true", True)],
)
def test_cudnn_benchmark(model: str, word: str, expected: bool) -> None:
    settings = plan_of(*tiny(model, "kernels=fused", f"kernels.fused.cudnn_benchmark={word}")).settings
    assert dict(settings.flags)["backends.cudnn.benchmark"] is expected
