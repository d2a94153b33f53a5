"""`memory=checkpoint` is the same training as `memory=none`, bit for bit, and holds less."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from conftest import TINY_MODELS, run_of, train_updates
from equal_runs import AOT, WITH_DROPOUT, assert_same, batch_of, executor_of, state_of, tiny
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainer4090.errors import ConfigError
from trainer4090.memory.checkpoint import checkpoint_blocks
from trainer4090.records import Part

SLOW = pytest.mark.full
KERNELS = {"eager": ("kernels=eager",), "fused": AOT}


@functools.cache
def trained(model: str, *words: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of three updates, and the state after them."""
    torch._dynamo.reset()
    run = run_of(*tiny(model, *WITH_DROPOUT[model], *words))
    return train_updates(run, 3), state_of(run)


def assert_exact(model: str, every: int, *words: str) -> None:
    losses, state = trained(model, *words)
    checkpointed = trained(model, *words, "memory=checkpoint", f"memory.checkpoint.every={every}")
    assert checkpointed[0] == losses
    assert_same(checkpointed[1], state)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm"])
def test_equals_none_exactly(model: str, precision: str, every: int) -> None:
    assert_exact(model, every, f"precision={precision}")


@pytest.mark.parametrize(
    ("precision", "every"),
    [("fp32", 2), *(pytest.param(*case, marks=SLOW) for case in [("fp32", 1), ("fp32", 3), ("bf16", 2), ("amp", 2)])],
)
def test_equals_none_exactly_on_resnet(precision: str, every: int) -> None:
    assert_exact("resnet", every, f"precision={precision}")


@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm"])
def test_equals_none_exactly_under_accumulation(model: str) -> None:
    assert_exact(model, 2, "train.micro_batch=2", "train.clip_norm=0.5")


@pytest.mark.parametrize("precision", ["fp32", pytest.param("amp", marks=SLOW)])
@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm"])
def test_equals_none_exactly_when_compiled(model: str, precision: str) -> None:
    assert_exact(model, 2, f"precision={precision}", *AOT)


class Chain(nn.Module):
    """BatchNorm, then a linear layer; with `gap`, something between the two."""

    def __init__(self, gap: float = 0.0) -> None:
        super().__init__()
        self.norm, self.linear, self.gap = nn.BatchNorm1d(1), nn.Linear(1, 1), gap

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(inputs)
        return self.linear(hidden + self.gap if self.gap else hidden)


@pytest.mark.parametrize("every", [1, 2])
def test_running_statistics_move_once_an_update(every: int) -> None:  # case B11
    module = Chain()
    checkpoint_blocks(Part(module, ("norm", "linear")), every)
    executor = executor_of(module, micro_batch=2)
    for _ in range(3):
        executor.step(batch_of(torch.tensor([[1.0], [3.0]])), observe=False)
    norm = module.norm
    assert norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 3
    torch.testing.assert_close(norm.running_mean, torch.tensor([0.5420]), rtol=0, atol=5e-5)
    torch.testing.assert_close(norm.running_var, torch.tensor([1.2710]), rtol=0, atol=5e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_blocks_that_are_no_chain_are_refused(compiled: bool) -> None:
    torch._dynamo.reset()
    module = Chain(gap=1.0)
    checkpoint_blocks(Part(module, ("norm", "linear")), every=2)
    if compiled:
        module.compile(backend="aot_eager")
    with pytest.raises(RuntimeError, match="blocks are no chain"):
        module(torch.tensor([[1.0], [3.0]]))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no blocks"):
        checkpoint_blocks(Part(nn.Linear(1, 1), ()), every=2)


def bytes_held(*words: str) -> int:
    """Bytes that one forward keeps for backward, parameters aside."""
    run = run_of(*words)
    module, held = run.executor.forward.module, {}
    owned = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs, _ = run.data.train.fetch(torch.arange(8), 0)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run.executor.forward(run.executor.forward.prepare(inputs))
    assert output.requires_grad
    return sum(held.values())


@pytest.mark.parametrize("model", ["resnet", "gpt", "char_lstm"])
def test_holds_less_for_backward(model: str) -> None:
    words = tiny(
        model, *{"gpt": ["model.num_layers=6"], "char_lstm": ["model.num_layers=6", "model.width=32"]}.get(model, [])
    )
    without, with_checkpoint = bytes_held(*words), bytes_held(*words, "memory=checkpoint")
    assert with_checkpoint < 0.5 * without


@pytest.mark.parametrize("model", TINY_MODELS)
def test_state_names_are_the_bare_models(model: str) -> None:
    torch._dynamo.reset()
    bare = list(state_of(run_of(*tiny(model))))
    for memory, kernels in itertools.product(("none", "checkpoint"), KERNELS.values()):
        assert list(state_of(run_of(*tiny(model, f"memory={memory}", *kernels)))) == bare


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
def test_blocks_after_a_frozen_one_are_trained(memory: str) -> None:  # case B13
    def frozen(*words: str) -> Any:
        run = run_of(*tiny("gpt", "model.num_layers=4", "optimizer.weight_decay=0", *words))
        module = run.executor.forward.module
        module.get_submodule("token_embedding").requires_grad_(False)
        module.get_submodule("position_embedding").requires_grad_(False)
        module.get_submodule("blocks.0").requires_grad_(False)
        return run, state_of(run)

    run, before = frozen(f"memory={memory}")
    reference, _ = frozen()
    assert train_updates(run, 1) == train_updates(reference, 1)
    after = state_of(run)
    assert_same(after, state_of(reference))
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    frozen_names = ("token_embedding", "position_embedding", "blocks.0", "head")  # the head is tied to the embedding
    assert moved == {name for name in after if not name.startswith(frozen_names)}
