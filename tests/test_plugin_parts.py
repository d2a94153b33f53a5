"""What plugins are made of: sources, per-target losses, and checks that leave no trace in the training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_of, train_updates
from plugin_files import isolated

from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.extend import dataset_source, per_target, tensor_source
from trainer4090.losses import cross_entropy
from trainer4090.plugins import loading
from trainer4090.registry import ContractError
from trainer4090.traits import DataTraits

COPY = '''\
from dataclasses import dataclass

import torch
from torch import nn

from trainer4090.extend import LOSSES, MODELS, Model, per_target
from trainer4090.models.networks.cnn import CNN


class Restless(nn.Module):
    """Counts its calls and draws a number in each, in evaluation too."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.calls += 1
        torch.rand(())
        return self.module(inputs)


@dataclass(frozen=True)
class Config:
    restless: bool = False


@MODELS.register("copy", Config)
def copy(config, data):
    """Ours again."""
    module = CNN((data.item_shape[0], 4, 8, 16), data.num_classes, 0.1)
    return Model(Restless(module), ()) if config.restless else Model(module, ("blocks.0", "blocks.1", "blocks.2"))


@dataclass(frozen=True)
class NoFields:
    pass


@LOSSES.register("own", NoFields)
def own(config, data):
    """Ours again."""
    return per_target(lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none"))
'''
TRAITS = DataTraits("images", (1, 8, 8), 3, 10, 10, 1, in_memory=True)


@pytest.fixture
def _copy() -> Iterator[None]:
    Path("copy.py").write_text(COPY, encoding="utf-8")
    with isolated():
        loading.load(["./copy.py"])
        yield


@pytest.mark.usefixtures("_copy")
@pytest.mark.parametrize("memory", ["none", "checkpoint"])
def test_an_own_model_trains_like_ours(memory: str) -> None:
    ours = train_updates(run_of("model=cnn", "model.width=4", f"memory={memory}"), 8)
    assert train_updates(run_of("plugin=./copy.py", "model=copy", f"memory={memory}"), 8) == ours


@pytest.mark.usefixtures("_copy")
def test_an_own_loss_trains_like_ours() -> None:
    words = ("plugin=./copy.py", "model=mlp", "model.hidden=[8]")
    ours = train_updates(run_of(*words), 8)
    for micro_batch in ("64", "16"):
        theirs = train_updates(run_of(*words, "loss=own", f"train.micro_batch={micro_batch}"), 8)
        assert theirs == pytest.approx(ours, rel=1e-5)


@pytest.mark.usefixtures("_copy")
def test_the_trial_leaves_no_trace() -> None:
    words = ("plugin=./copy.py", "model=copy", "model.restless=true")
    built = run_of(*words)
    after_build = torch.rand(())
    assert int(built.executor.forward.module.get_buffer("calls")) == 0
    assert built.executor.forward.module.training
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer4090.build.checks.trial.check", lambda *arguments: None)
        run_of(*words)
    assert torch.equal(after_build, torch.rand(()))


class Noisy:
    """A dataset whose transform draws from all three generators."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(()).item() + random.random() + np.random.rand()
        return torch.tensor([index, noise]), index


def fetched(source: Any, indices: list[int], epoch: int) -> torch.Tensor:
    return source.fetch(torch.tensor(indices), epoch)[0]


def test_transforms_depend_on_seed_epoch_and_sample_alone() -> None:
    source = dataset_source(Noisy(), list(range(7)), seed=3)
    whole = fetched(source, [0, 1, 2, 3, 4, 5, 6], 0)
    assert torch.equal(fetched(source, [5, 2], 0), whole[[5, 2]])
    assert len(whole[:, 1].unique()) == 7
    assert not (fetched(source, [5, 2], 1)[:, 1] == whole[[5, 2], 1]).any()
    assert not (fetched(dataset_source(Noisy(), list(range(7)), seed=4), [5], 0)[:, 1] == whole[5, 1]).any()
    _, targets = source.fetch(torch.tensor([4, 1]), 0)
    assert targets.tolist() == [4, 1] and torch.equal(targets, source.targets(torch.tensor([4, 1]), 0))


def test_a_dataset_moves_no_generator() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    fetched(dataset_source(Noisy(), list(range(7)), seed=3), [0, 6], 2)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()


def test_a_dataset_gives_the_same_in_workers() -> None:
    def batches(num_workers: int) -> list[torch.Tensor]:
        source = dataset_source(Noisy(), list(range(7)), seed=3)
        made = training_batches(source, torch.Tensor.numel, 3, 5, Position(0, 0), num_workers, pin=False)
        return [batch.inputs for _, (batch, _) in zip(range(5), made, strict=False)]

    assert all(torch.equal(*pair) for pair in zip(batches(0), batches(2), strict=True))


def test_tensors_of_any_form() -> None:
    source = tensor_source({"a": torch.arange(4), "b": (torch.arange(8).view(4, 2),)}, torch.arange(4) * 10)
    inputs, targets = source.fetch(torch.tensor([3, 0]), 0)
    assert (len(source), targets.tolist(), inputs["a"].tolist()) == (4, [30, 0], [3, 0])
    assert inputs["b"][0].tolist() == [[6, 7], [0, 1]]
    assert source.resident(torch.device("cpu")) is source


@pytest.mark.parametrize("shape", [(5,), (5, 4)], ids=["classes", "tokens"])
def test_a_loss_per_target_is_the_sum(shape: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(*shape, 3), torch.randint(3, shape)
    loss = per_target(
        lambda outputs, targets: torch.nn.functional.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), reduction="none"
        )
    )
    ours = cross_entropy.cross_entropy(cross_entropy.Config(), TRAITS)
    assert torch.allclose(loss.total(outputs, targets), ours.total(outputs, targets))
    assert loss.count(targets) == ours.count(targets) == targets.numel()
    assert loss.total(outputs.bfloat16(), targets).dtype == torch.float32


def test_a_sample_of_numbers_is_one_target() -> None:
    loss = per_target(lambda outputs, targets: (outputs - targets).abs().mean(-1))
    outputs, targets = torch.ones(4, 3), torch.zeros(4, 3)
    assert (float(loss.total(outputs, targets)), loss.count(targets)) == (4.0, 4)
    with pytest.raises(ContractError, match="one number a target"):
        per_target(lambda outputs, targets: (outputs - targets).abs()).total(outputs, targets)
