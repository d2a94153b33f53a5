"""The other two ways of `memory=checkpoint`: by operations and by the compiler's budget, equal to none bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import plan_of, run_of
from equal_runs import AOT, assert_same, batch_of, executor_of, tiny
from test_checkpointing import Chain, bytes_held, trained
from torch.utils._python_dispatch import TorchDispatchMode

from trainer4090.errors import ConfigError
from trainer4090.memory.checkpoint import OPERATIONS, checkpoint_blocks
from trainer4090.records import Part

SLOW = pytest.mark.full
OFF = "memory.checkpoint.every=null"
PRODUCTS = "memory.checkpoint.select=[matmul,convolution]"
ALL = f"memory.checkpoint.select=[{','.join(OPERATIONS)}]"
"""With attention, which draws dropout itself: for models without."""


def selecting(*words: str) -> tuple[str, ...]:
    return ("memory=checkpoint", OFF, *(f"memory.checkpoint.select=[{word}]" for word in words))


def budget(share: float) -> tuple[str, ...]:
    return (*AOT, "memory=checkpoint", OFF, f"memory.checkpoint.budget={share}")


def assert_exact(model: str, base: tuple[str, ...], *words: str) -> None:
    losses, state = trained(model, *base)
    checkpointed = trained(model, *base, *words)
    assert checkpointed[0] == losses
    assert_same(checkpointed[1], state)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm", pytest.param("resnet", marks=SLOW)])
def test_select_equals_none_exactly(model: str, precision: str) -> None:
    assert_exact(model, (f"precision={precision}",), "memory=checkpoint", OFF, PRODUCTS)


@pytest.mark.parametrize("model", ["cnn", "gpt", pytest.param("char_lstm", marks=SLOW)])
def test_select_equals_none_exactly_when_compiled(model: str) -> None:
    assert_exact(model, AOT, "memory=checkpoint", OFF, PRODUCTS)


@pytest.mark.parametrize("compiled", [(), AOT], ids=["eager", "compiled"])
def test_attention_that_is_held_equals_none_exactly(compiled: tuple[str, ...]) -> None:
    assert_exact("gpt", ("model.dropout=0", *compiled), "memory=checkpoint", OFF, ALL)


def test_select_equals_none_exactly_beside() -> None:
    base = ("train.micro_batch=4", "train.clip_norm=0.5")
    assert_exact("gpt", base, "memory=[checkpoint,offload]", OFF, PRODUCTS, "memory.offload.min_mib=0")


@pytest.mark.parametrize("share", [0.2, pytest.param(0.6, marks=SLOW)])
@pytest.mark.parametrize("model", ["cnn", "gpt", pytest.param("char_lstm", marks=SLOW)])
def test_budget_equals_none_exactly(model: str, share: float) -> None:
    """Without dropout: torch draws its mask anew where a budget recomputes it (see the refusal below)."""
    assert_exact(model, ("model.dropout=0", *AOT), *budget(share)[len(AOT) :])


def test_running_statistics_move_once_an_update() -> None:  # case B11
    module = Chain()
    checkpoint_blocks(Part(module, ("norm", "linear")), 1, ("matmul",))
    executor = executor_of(module, micro_batch=2)
    for _ in range(3):
        executor.step(batch_of(torch.tensor([[1.0], [3.0]])), observe=False)
    assert module.norm.num_batches_tracked is not None and int(module.norm.num_batches_tracked) == 3
    torch.testing.assert_close(module.norm.running_mean, torch.tensor([0.5420]), rtol=0, atol=5e-5)


class Counting(TorchDispatchMode):
    """Counts the operations that are really computed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def counted(*words: str) -> dict[str, int]:
    """Word of `select` -> its operations in one update."""
    run = run_of(*words)
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    with Counting() as counting:
        run.executor.step(batch_of(inputs, targets, targets.numel()), observe=False)
    return {word: sum(counting.counts.get(name, 0) for name in names) for word, names in OPERATIONS.items()}


@pytest.mark.parametrize(("model", "word"), [("cnn", "convolution"), ("gpt", "matmul"), ("gpt", "attention")])
def test_what_is_selected_is_not_computed_again(model: str, word: str) -> None:
    words = tiny(model, "model.dropout=0")
    once, again = counted(*words)[word], counted(*words, "memory=checkpoint", "memory.checkpoint.every=1")[word]
    assert counted(*words, *selecting(word))[word] == once < again
    others = {"convolution": "matmul", "matmul": "attention", "attention": "matmul"}
    assert counted(*words, *selecting(others[word]))[word] == again


def test_a_smaller_budget_holds_fewer_bytes() -> None:
    words = tiny("gpt", "model.num_layers=4", "model.dropout=0")
    held = []
    for more in (AOT, budget(0.5), budget(0.1)):
        torch._dynamo.reset()
        held.append(bytes_held(*words, *more))
    assert held[2] < held[1] < held[0]


def test_the_budget_is_nobodys_but_the_runs() -> None:
    from torch._functorch import config

    words = tiny("mlp", "model.dropout=0", *budget(0.5))
    run_of(*words).executor.forward(torch.zeros(8, 1, 8, 8))
    assert config.activation_memory_budget == 1.0


WRONG = {
    "budget above 1": (
        (*AOT, "memory.checkpoint.budget=1.5", OFF),
        "memory.checkpoint.budget: 1.5; allowed is a number",
    ),
    "no budget": (
        (*AOT, "memory.checkpoint.budget=0", OFF),
        "memory.checkpoint.budget: 0; allowed is a number above 0",
    ),
    "two": (("memory.checkpoint.budget=0.5",), "memory.checkpoint: every=2 beside budget=0.5: one of them decides"),
    "other two": (("memory.checkpoint.select=[matmul]",), "memory.checkpoint: every=2 beside select=['matmul']: one"),
    "none": ((OFF,), "memory.checkpoint: every, budget and select are all off"),
    "operation": ((OFF, "memory.checkpoint.select=[matmull]"), "matmul or convolution or attention"),
    "dropout": (
        (*AOT, OFF, "memory.checkpoint.budget=0.5", "model.dropout=0.2"),
        "memory.checkpoint.budget: cnn has dropout, and with budget checkpoint draws another in backward",
    ),
    "attention": (
        (OFF, ALL, "model=gpt_tiny", "data=text", "model.dropout=0.2"),
        "memory.checkpoint.select: gpt has dropout, and with select checkpoint draws another in backward",
    ),
    "eager": ((OFF, "memory.checkpoint.budget=0.5"), "leaves the choice to the compiler, and eager compiles nothing"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_what_does_not_go_together_is_an_error(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of("memory=checkpoint", *words)
    assert text in str(error.value) and error.value.exit_code == 2


def test_the_plan_says_what_is_held() -> None:
    assert "CHECKPOINT: recompute activations of each block but the outputs of matmul" in (
        plan_of(*selecting("matmul")).describe()
    )
    described = plan_of("model=mlp", *budget(0.5)).describe()
    assert "FORWARD: the compiler holds 0.5 of the activations' bytes" in described and "need not fall" in described
