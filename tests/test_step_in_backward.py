"""`memory=step_in_backward` is the same training as `memory=none`, bit for bit, and never holds all gradients."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import AOT, WITH_DROPOUT, assert_same, batch_of, state_of, tiny
from runs import differences
from torch import nn

from trainer4090.build import Run
from trainer4090.errors import ConfigError
from trainer4090.executors.in_backward import ParameterSteps

IN_BACKWARD = "memory=step_in_backward"
OPTIMIZERS = {
    "sgd": ("optimizer=sgd", "optimizer.nesterov=true"),
    "adamw": ("optimizer=adamw", "optimizer.lr=0.01"),
    "fused": ("optimizer=adamw", "kernels=fused", "kernels.fused.compile=false"),
}
VARIANTS = {
    "average": ("ema.decay=0.9",),
    "cosine": ("schedule=cosine",),
    "bf16": ("precision=bf16",),
    "layer_decay": ("optimizer.layer_decay=0.7",),
    "frozen": ("model.freeze=[blocks.0]",),
    "compiled": AOT,
    "checkpoint": ("memory=[checkpoint,step_in_backward]",),
}
"""Words beside those of the option; `gpt` has a tied weight, whose gradient comes from two places."""


def outcome(run: Run) -> dict[str, Any]:
    """Everything that the next update depends on."""
    return run.executor.state_dict()


def assert_equal_training(model: str, *words: str) -> None:
    torch._dynamo.reset()
    words = tiny(model, *WITH_DROPOUT[model], *words)
    ordinary = run_of(*(word for word in words if not word.startswith("memory")))
    stepped = run_of(*(words if any(word.startswith("memory") for word in words) else (*words, IN_BACKWARD)))
    losses = []
    for run in (ordinary, stepped):
        torch.manual_seed(1)
        losses.append(train_updates(run, 4))
    assert losses[0] == losses[1]
    assert differences(outcome(ordinary), outcome(stepped)) == []


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm", pytest.param("resnet", marks=pytest.mark.full)])
def test_equals_none_exactly(model: str, optimizer: tuple[str, ...]) -> None:
    assert_equal_training(model, *optimizer)


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS)
def test_equals_none_exactly_beside(words: tuple[str, ...]) -> None:
    assert_equal_training("gpt", "optimizer=adamw", *words)


@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_the_observed_norm_is_the_whole_gradients(model: str) -> None:
    words = tiny(model)
    inputs, targets = run_of(*words).data.train.fetch(torch.arange(8), 0)
    outputs = []
    for memory in ("memory=none", IN_BACKWARD):
        torch.manual_seed(1)
        executor = run_of(*words, memory).executor
        outputs.append([executor.step(batch_of(inputs, targets, targets.numel()), each) for each in (True, False)])
    (whole, _), (stepped, unobserved) = outputs
    assert torch.equal(whole.grad_norm, stepped.grad_norm) and unobserved.grad_norm is None


def most_gradients_at_once(run: Run) -> int:
    """Gradients that exist together at the most during one update."""
    parameters = [each for each in run.executor.forward.module.parameters() if each.requires_grad]
    most = 0

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, sum(each.grad is not None for each in parameters))

    for each in parameters:
        each.register_post_accumulate_grad_hook(count)
    train_updates(run, 1)
    assert all(each.grad is None for each in parameters) or most == len(parameters)
    return most


def test_gradients_never_exist_all_at_once() -> None:
    """One is freed before the next: counted after our own hook, so none is left."""
    assert most_gradients_at_once(run_of(*tiny("gpt"), IN_BACKWARD)) == 0
    assert most_gradients_at_once(run_of(*tiny("gpt"))) > 20


def test_goes_on_where_an_ordinary_run_stood() -> None:
    words = tiny("cnn", "optimizer=adamw", "ema.decay=0.9")
    ordinary, stepped = run_of(*words), run_of(*words, IN_BACKWARD)
    train_updates(ordinary, 3)
    stepped.executor.load_state_dict(deepcopy(ordinary.executor.state_dict()))  # as from a file
    for run in (ordinary, stepped):
        torch.manual_seed(1)
        train_updates(run, 3)
    assert_same(state_of(ordinary), state_of(stepped))
    assert differences(outcome(ordinary), outcome(stepped)) == []


def test_an_unused_parameter_is_named() -> None:
    module = nn.ModuleDict({"used": nn.Linear(1, 1), "unused": nn.Linear(1, 1)})
    steps = ParameterSteps(torch.optim.SGD(module.parameters(), lr=1.0))
    steps.begin(observe=False)
    module["used"](torch.ones(1, 1)).sum().backward()
    assert steps.missing(module.named_parameters()) == ["unused.weight", "unused.bias"]


REFUSALS = {
    "accumulation": (("train.batch_size=8", "train.micro_batch=4"), "train.micro_batch: 2 micro-batches an update"),
    "clip_norm": (("train.clip_norm=1",), "train.clip_norm: 1, but step_in_backward steps a parameter before"),
    "scaling": (("precision=amp",), "precision: amp skips an update whose gradients overflow"),
}


@pytest.mark.parametrize(("words", "text"), REFUSALS.values(), ids=REFUSALS)
def test_what_needs_the_whole_gradient_is_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(IN_BACKWARD, *words)
    assert text in str(error.value) and error.value.exit_code == 2


def test_the_plan_says_what_compiling_takes_from_it() -> None:
    described = plan_of(IN_BACKWARD, *AOT).describe()
    assert "notice        memory: asked gradients freed one by one, got all gradients of a compiled unit" in described
    assert "each parameter inside backward" in described
