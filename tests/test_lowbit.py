"""`memory=lowbit`: states in 8 bits that resume exactly, stay near, and are left alone where nothing moves."""

from __future__ import annotations

import dataclasses
import io
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import AOT, assert_near, assert_same, batch_of, state_of, tiny
from runs import differences

from trainer4090 import rules
from trainer4090.build import Run
from trainer4090.errors import ConfigError
from trainer4090.executors import codes
from trainer4090.executors.codes import BLOCK, Kind, decoded, encoded, words

LOWBIT = ("memory=lowbit", "memory.lowbit.min_elements=1")
OPTIMIZERS = {
    "sgd": ("optimizer=sgd",),
    "adamw": ("optimizer=adamw", "optimizer.lr=0.01"),
    "fused": ("optimizer=adamw", "optimizer.lr=0.01", "kernels=fused", "kernels.fused.compile=false"),
}
KINDS: tuple[Kind, ...] = ("signed", "unsigned")


def values_of(kind: Kind, size: int) -> torch.Tensor:
    """Values over nine decades, with a block of zeros."""
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator) * 10 ** (-9 * torch.rand(size, generator=generator))
    values[: min(size, BLOCK)] = 0
    return values.abs() if kind == "unsigned" else values


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_rises_to_one_in_at_most_256_words(kind: Kind) -> None:
    code = words(kind)
    assert len(code) <= 256 and code == sorted(set(code))
    assert (code[0], code[-1]) == ({"signed": -1.0, "unsigned": 0.0}[kind], 1.0) and 0.0 in code
    if kind == "signed":
        assert code == [-each for each in reversed(code)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, BLOCK, 5 * BLOCK, 2000])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_decoded_is_encoded_to_the_same_bits(
    kind: Kind, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "SLICE", 2 * BLOCK)
    values = values_of(kind, size).to(dtype)
    first = encoded(values, kind)
    assert first[0].dtype == torch.uint8 and first[1].dtype == dtype and len(first[1]) == -(-size // BLOCK)
    again = encoded(decoded(*first, kind), kind)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    monkeypatch.undo()
    assert torch.equal(first[0], encoded(values, kind)[0])


@pytest.mark.parametrize(("kind", "tolerance"), [("signed", 0.071), ("unsigned", 0.036)])
def test_values_of_the_highest_decade_keep_a_few_percent(kind: Kind, tolerance: float) -> None:
    """And those of each decade below twice as many."""
    for decade in range(3):
        values = torch.cat([torch.ones(1), torch.linspace(0.11, 1, BLOCK - 1) * 10**-decade])
        error = (decoded(*encoded(values, kind), kind) / values - 1).abs().max()
        assert tolerance * 2**decade / 2 < error < tolerance * 2**decade


def test_only_zero_becomes_zero_where_a_root_divides_by_it() -> None:
    values = torch.tensor([0.0, 1e-30, 1e-9, 1.0])
    assert (decoded(*encoded(values, "unsigned"), "unsigned") > 0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_the_arithmetic_is_the_optimizers_own(model: str, optimizer: tuple[str, ...]) -> None:
    """The first update starts from states that 8 bits hold exactly; with nothing in 8 bits all updates are equal."""
    plain, narrow = run_of(*tiny(model, *optimizer)), run_of(*tiny(model, *optimizer), *LOWBIT)
    assert seeded(plain, 1) == seeded(narrow, 1)
    assert_same(state_of(plain), state_of(narrow))
    small = run_of(*tiny(model, *optimizer), "memory=lowbit", "memory.lowbit.min_elements=1000000")
    plain = run_of(*tiny(model, *optimizer))
    assert seeded(plain, 4) == seeded(small, 4)
    assert differences(plain.executor.state_dict(), small.executor.state_dict()) == []


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_losses_stay_near(model: str, optimizer: str) -> None:
    words = tiny(model, f"optimizer={optimizer}", "optimizer.lr=0.01", "model.dropout=0")
    losses = [train_updates(run_of(*words, *more), 50) for more in ((), LOWBIT)]
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.02)
    assert losses[1] != losses[0]


def seeded(run: Run, num_updates: int) -> list[float]:
    """Losses of updates whose dropout is the same in every run."""
    torch.manual_seed(1)
    return train_updates(run, num_updates)


def states_of(run: Run) -> dict[int, dict[str, Any]]:
    """States of the optimizer by the number of the parameter."""
    return run.executor.state_dict()["optimizer"]["state"]


def num_bytes(run: Run) -> int:
    return sum(
        each.nbytes for state in states_of(run).values() for each in state.values() if isinstance(each, torch.Tensor)
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_states_take_little_more_than_a_quarter(optimizer: str) -> None:
    wide, narrow = (run_of("model=mlp", f"optimizer={optimizer}", f"memory={each}") for each in ("none", "lowbit"))
    for run in (wide, narrow):
        train_updates(run, 1)
    assert num_bytes(narrow) < 0.29 * num_bytes(wide)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_saved_state_comes_back_bit_for_bit(optimizer: tuple[str, ...]) -> None:
    words = tiny("gpt", *optimizer, *LOWBIT)
    run, resumed = run_of(*words), run_of(*words)
    train_updates(run, 3)
    saved = through_a_file(run.executor.state_dict())
    assert any(each.dtype == torch.uint8 for each in saved["optimizer"]["state"][0].values())
    resumed.executor.load_state_dict(saved)
    assert differences(states_of(resumed), states_of(run)) == []
    assert seeded(resumed, 3) == seeded(run, 3)
    assert differences(resumed.executor.state_dict(), run.executor.state_dict()) == []


def test_a_killed_run_ends_as_the_unkilled_one(tmp_path: Path) -> None:
    outcomes = []
    for name, stops in (("whole", ()), ("stopped", (15,))):
        folder = runs.new_folder(tmp_path / name)
        words = (*runs.GPT, "optimizer=adamw", "memory=lowbit", "memory.lowbit.min_elements=64")
        with runs.signalled(*stops):
            code = runs.train(folder, *words)
        if stops:
            assert (code, runs.train(folder, *words, "resume=last")) == (143, 0)
        outcomes.append(runs.outcome(folder)["state"])
    assert differences(*outcomes) == []


@pytest.mark.parametrize("words", [(), ("memory=[lowbit,step_in_backward]", LOWBIT[1])], ids=["none", "in_backward"])
def test_any_run_goes_on_from_any_states(words: tuple[str, ...]) -> None:
    """8 bits become wide where they are not asked for, and wide ones 8 bits where they are."""
    base = tiny("gpt", "optimizer=adamw", "optimizer.lr=0.01")
    narrow, other = run_of(*base, *LOWBIT), run_of(*base, *words)
    train_updates(narrow, 3)
    other.executor.load_state_dict(deepcopy(narrow.executor.state_dict()))
    back = run_of(*base, *LOWBIT)
    back.executor.load_state_dict(deepcopy(other.executor.state_dict()))
    assert differences(states_of(back), states_of(narrow)) == []
    assert seeded(other, 1) == seeded(narrow, 1)
    assert_same(state_of(other), state_of(narrow))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_skipped_update_moves_no_state(optimizer: str) -> None:
    run = run_of(*tiny("mlp", "precision=amp", "precision.initial_scale=1024", f"optimizer={optimizer}", *LOWBIT))
    train_updates(run, 2)
    before = deepcopy(run.executor.state_dict())
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    run.executor.step(batch_of(inputs.float().fill_(torch.nan), targets), observe=False)
    after = run.executor.state_dict()
    assert differences(after["optimizer"]["state"], before["optimizer"]["state"]) == []
    assert_same(after["model"], before["model"])


@pytest.mark.parametrize("words", [(), AOT], ids=["eager", "compiled"])
def test_steps_in_backward_as_after_it(words: tuple[str, ...]) -> None:
    torch._dynamo.reset()
    base = tiny("gpt", "optimizer=adamw", *words)
    narrow, both = run_of(*base, *LOWBIT), run_of(*base, "memory=[step_in_backward,lowbit]", LOWBIT[1])
    assert train_updates(narrow, 3) == train_updates(both, 3)
    assert differences(both.executor.state_dict(), narrow.executor.state_dict()) == []


def test_states_follow_names_and_not_the_layout_of_memory() -> None:
    """A fused kernel goes through memory as it lies; codes are in row-major order whatever that is."""
    words = ("model.dropout=0", "optimizer=adamw", "kernels=fused", "kernels.fused.compile=false")
    base = tiny("cnn", *words, *LOWBIT)
    flat, last = run_of(*base, "kernels.fused.channels_last=false"), run_of(*base, "kernels.fused.channels_last=true")
    seeded(flat, 3)
    last.executor.load_state_dict(deepcopy(flat.executor.state_dict()))
    assert differences(states_of(last), states_of(flat)) == []
    assert seeded(last, 1) == pytest.approx(seeded(flat, 1), rel=1e-5)
    assert_near(state_of(flat), state_of(last), 1e-5)


UNSTATED = {"separable": {"separable": False}, "states": {"states": {}}}


@pytest.mark.parametrize("change", UNSTATED.values(), ids=UNSTATED)
def test_an_optimizer_that_does_not_say_what_it_keeps_is_refused(change: dict[str, Any]) -> None:
    made = plan_of("memory=lowbit")
    with pytest.raises(
        ConfigError, match=r"optimizer: sgd .* use optimizer=adamw or optimizer=sgd, or give its record"
    ):
        rules.check(dataclasses.replace(made, optimizer=dataclasses.replace(made.optimizer, **change)))


def test_the_plan_says_which_states() -> None:
    assert "OPTIMIZER: sgd, torch's default kernels, schedule onecycle, states of 4096 values or more in 8 bits" in (
        plan_of("memory=lowbit").describe()
    )
