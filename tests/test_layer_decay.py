"""Layer-wise learning rates: the groups that one would write by hand, and none where all rates are equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import run_of, train_updates
from equal_runs import assert_near, assert_same, batch_of, state_of, tiny
from test_update import NoReading

from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.finetune.depth import depths

CONSTANT = ("schedule=constant", "optimizer.lr=0.1")
SHARES = {
    "cnn": {"blocks.0.": 0.125, "blocks.1.": 0.25, "blocks.2.": 0.5, "head.": 1.0},
    "gpt": {"token_embedding.": 0.125, "position_embedding.": 0.125, "blocks.0.": 0.25, "blocks.1.": 0.5, "norm.": 1.0},
    "resnet": {
        **{"conv1.": 2.0**-9, "bn1.": 2.0**-9, "fc.": 1.0},
        **{f"layer{1 + block // 2}.{block % 2}.": 2.0 ** (block - 8) for block in range(8)},
    },
}
"""Share of the learning rate by the beginning of a parameter's name, for a decay of 0.5."""


def share_of(model: str, name: str) -> float:
    (share,) = (share for begin, share in SHARES[model].items() if name.startswith(begin))
    return share


def groups_of(run: Any) -> list[dict[str, Any]]:
    return run.executor._optimizer.param_groups


@pytest.mark.parametrize("model", SHARES)
def test_every_parameter_has_the_share_of_its_depth(model: str) -> None:
    run = run_of(*tiny(model, *CONSTANT, "optimizer.layer_decay=0.5"))
    train_updates(run, 1)
    found = {id(parameter): group["lr"] for group in groups_of(run) for parameter in group["params"]}
    named = dict(run.executor.forward.module.named_parameters())
    assert {name: found[id(parameter)] for name, parameter in named.items()} == {
        name: pytest.approx(0.1 * share_of(model, name)) for name in named
    }
    assert all((group["weight_decay"] > 0) == (group["params"][0].ndim >= 2) for group in groups_of(run))


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_decay_of_one_is_none_bit_for_bit(optimizer: str, precision: str) -> None:
    words = tiny("gpt", f"optimizer={optimizer}", f"precision={precision}")
    without, one = run_of(*words), run_of(*words, "optimizer.layer_decay=1")
    assert len(groups_of(without)) == len(groups_of(one)) == 2
    assert train_updates(without, 3) == train_updates(one, 3)
    assert_same(state_of(without), state_of(one))


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_equals_groups_written_by_hand(model: str, optimizer: str, precision: str) -> None:
    words = tiny(model, *CONSTANT, f"optimizer={optimizer}", f"precision={precision}", "optimizer.weight_decay=0.1")
    words += ("model.dropout=0",)
    ours = run_of(*words, "optimizer.layer_decay=0.5")
    theirs = run_of(*words)
    hand = [
        {"params": [parameter], "weight_decay": 0.1 if parameter.ndim >= 2 else 0.0, "lr_scale": share_of(model, name)}
        for name, parameter in theirs.executor.forward.module.named_parameters()
    ]
    built = theirs.plan.optimizer.build([{**group, "lr": 0.1} for group in hand], theirs.plan.fused_optimizer)
    theirs.executor._optimizer = theirs.executor._update._optimizer = built  # type: ignore[attr-defined]
    assert train_updates(ours, 3) == pytest.approx(train_updates(theirs, 3), rel=1e-5)
    assert_near(state_of(ours), state_of(theirs), 1e-6)


def test_equals_a_loop_written_by_hand() -> None:
    """No code of ours but the network and the batches: torch's own optimizer, one rate a group."""
    words = tiny("mlp", *CONSTANT, "optimizer.momentum=0.5", "optimizer.weight_decay=0.1")
    ours, theirs = run_of(*words, "optimizer.layer_decay=0.5"), run_of(*words)
    module = theirs.executor.forward.module
    shares = {"blocks.0": 0.25, "blocks.1": 0.5, "head": 1.0}
    optimizer = torch.optim.SGD(
        [
            {"params": [parameter], "lr": 0.1 * share, "weight_decay": 0.1 if parameter.ndim >= 2 else 0.0}
            for name, share in shares.items()
            for parameter in module.get_submodule(name).parameters()
        ],
        momentum=0.5,
    )
    batches = training_batches(theirs.data.train, theirs.loss.count, 8, 0, Position(0, 0), 0, False)
    for _, (batch, _) in zip(range(4), batches, strict=False):
        optimizer.zero_grad()
        inputs, targets = theirs.executor.forward.place(batch)
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    train_updates(ours, 4)
    assert_near(state_of(ours), state_of(theirs), 1e-6)


def test_the_heads_rate_is_logged_and_follows_the_schedule() -> None:
    run = run_of(*tiny("cnn", "schedule=cosine", "optimizer.lr=0.1", "optimizer.layer_decay=0.5"))
    plain = run_of(*tiny("cnn", "schedule=cosine", "optimizer.lr=0.1"))
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    for _ in range(3):
        ours, theirs = (each.executor.step(batch_of(inputs, targets), observe=True) for each in (run, plain))
        assert ours.learning_rate == theirs.learning_rate
        assert [group["lr"] for group in groups_of(run)] == [
            pytest.approx(ours.learning_rate * group["lr_scale"]) for group in groups_of(run)
        ]


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_rates_are_not_read_back(precision: str) -> None:
    run = run_of(*tiny("gpt", f"precision={precision}", "optimizer.layer_decay=0.5"))
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    batch = batch_of(inputs, targets, targets.numel())
    with NoReading():
        for _ in range(2):
            run.executor.step(batch, observe=True)


def test_frozen_blocks_are_counted_but_have_no_group() -> None:
    run = run_of(*tiny("cnn", *CONSTANT, "model.freeze=[stem]", "optimizer.layer_decay=0.5"))
    assert sorted({group["lr_scale"] for group in groups_of(run)}) == [0.25, 0.5, 1.0]


def test_names_between_blocks_belong_to_the_block_before() -> None:
    names = ["", "stem.weight", "body", "body.a.weight", "body.between.weight", "body.b.weight", "norm.weight"]
    assert depths(names, ("body.a", "body.b")) == {
        "stem.weight": 0,
        "body.a.weight": 1,
        "body.between.weight": 1,
        "body.b.weight": 2,
        "norm.weight": 3,
    }
    assert depths(["blocks.1.weight", "blocks.10.weight"], ("blocks.1", "blocks.10")) == {
        "blocks.1.weight": 1,
        "blocks.10.weight": 2,
    }
