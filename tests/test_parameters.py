"""Which parameters are trained, how they are grouped, and that tied ones stay one."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from conftest import TINY_MODELS, run_of, train_updates
from equal_runs import assert_same, batch_of, executor_of, state_of, tiny
from torch import nn

from trainer4090.build.updates import parameter_groups
from trainer4090.errors import ConfigError


@pytest.mark.parametrize("model", TINY_MODELS)
def test_every_parameter_is_in_one_group_and_vectors_do_not_decay(model: str) -> None:
    module = run_of(*tiny(model)).executor.forward.module
    groups = parameter_groups(module, learning_rate=0.1, weight_decay=0.01)
    members = [parameter for group in groups for parameter in group["params"]]
    assert len(members) == len({id(parameter) for parameter in members})
    assert {id(parameter) for parameter in members} == {id(parameter) for parameter in module.parameters()}
    for group in groups:
        assert {parameter.ndim >= 2 for parameter in group["params"]} == {group["weight_decay"] > 0}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_reaches_the_optimizer(optimizer: str) -> None:
    run = run_of(*tiny("mlp", f"optimizer={optimizer}", "optimizer.weight_decay=0.25"))
    groups = run.executor.state_dict()["optimizer"]["param_groups"]
    assert sorted((group["weight_decay"], len(group["params"])) for group in groups) == [(0.0, 3), (0.25, 3)]


def test_frozen_parameters_are_in_no_group() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    groups = parameter_groups(module, learning_rate=0.1, weight_decay=0.0)
    assert {id(parameter) for group in groups for parameter in group["params"]} == {
        id(p) for p in module[1].parameters()
    }


class WithSpareHead(nn.Module):
    """A head that the forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare_head = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)


def test_an_unused_parameter_is_named() -> None:  # cases B13 and B14
    executor = executor_of(WithSpareHead(), micro_batch=2)
    with pytest.raises(ConfigError, match=r"does not depend on spare_head\.weight, spare_head\.bias"):
        executor.step(batch_of(torch.ones(2, 1)), observe=False)


def tied(run: Any) -> tuple[nn.Parameter, nn.Parameter]:
    module = run.executor.forward.module
    return module.get_parameter("token_embedding.weight"), module.get_parameter("head.weight")


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
def test_tied_weights_are_one_parameter_before_and_after_a_file(memory: str) -> None:  # case B20
    words = tiny("gpt", f"memory={memory}", "ema.decay=0.9", "optimizer=adamw")
    run, other = run_of(*words), run_of(*words, "train.seed=1")
    train_updates(run, 2)
    state = run.executor.state_dict()
    assert {"token_embedding.weight", "head.weight"} <= set(state["model"])
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other.executor.load_state_dict(torch.load(file, weights_only=True))
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    for trained in (run, other):
        trained.executor.step(batch_of(inputs, targets, targets.numel()), observe=False)
        embedding, head = tied(trained)
        assert embedding is head and embedding.untyped_storage().data_ptr() == head.untyped_storage().data_ptr()
    assert_same(state_of(run), state_of(other))


def test_a_tied_weight_gets_both_gradients() -> None:
    """The gradient of the tied weight is the sum of those of an untied twin."""
    run, twin = run_of(*tiny("gpt")), run_of(*tiny("gpt", "model.tie=false"))
    source = run.executor.forward.module.state_dict()
    twin.executor.forward.module.load_state_dict(source)
    for trained in (run, twin):
        inputs, targets = trained.data.train.fetch(torch.arange(8), 0)
        trained.loss.total(trained.executor.forward(inputs), targets).backward()
    (embedding, _), (first, second) = tied(run), tied(twin)
    assert embedding.grad is not None and first.grad is not None and second.grad is not None
    torch.testing.assert_close(embedding.grad, first.grad + second.grad, rtol=1e-5, atol=1e-5)
