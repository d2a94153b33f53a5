"""The exponential moving average is torch's formula and leaves the parameters alone."""

from __future__ import annotations

import pytest
import torch
from conftest import run_of, train_updates
from equal_runs import assert_same, batch_of, state_of, tiny
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainer4090.executors.average import Average

PRECISION = {"fp32": ("precision=fp32",), "amp": ("precision=amp", "precision.initial_scale=64")}


@pytest.mark.parametrize("words", PRECISION.values(), ids=PRECISION)
def test_equals_torchs_averaged_model(words: tuple[str, ...]) -> None:
    run = run_of(*tiny("cnn", "ema.decay=0.8", *words))
    module, average = run.executor.forward.module, run.executor.average
    assert average is not None
    reference = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    reference.update_parameters(module)  # the first call copies
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    for _ in range(5):
        run.executor.step(batch_of(inputs, targets), observe=False)
        reference.update_parameters(module)
    found = average.state_dict()
    assert list(found) == [name for name, _ in module.named_parameters()]
    for name, parameter in reference.module.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-5, atol=1e-7)


def test_swapping_in_shows_the_averages_and_gives_the_parameters_back() -> None:
    run = run_of(*tiny("gpt", "ema.decay=0.5"))
    train_updates(run, 3)
    average = run.executor.average
    assert average is not None
    before, averages = state_of(run), {name: value.clone() for name, value in average.state_dict().items()}
    with pytest.raises(KeyError), average.swapped_in():
        inside = state_of(run)
        raise KeyError("an evaluation that fails")
    assert all(torch.equal(inside[name], value) for name, value in averages.items())
    assert any(not torch.equal(before[name], value) for name, value in averages.items())
    assert_same(state_of(run), before)
    assert_same(average.state_dict(), averages)


@pytest.mark.parametrize(("applied", "expected"), [(None, 0.5), (1.0, 0.5), (0.0, 0.0)], ids=str)
def test_a_skipped_update_does_not_move_it(applied: float | None, expected: float) -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    average = Average(module, decay=0.75)
    torch.nn.init.constant_(module.weight, 2.0)
    average.update(None if applied is None else torch.tensor(applied))
    assert float(average.state_dict()["weight"]) == expected


def test_loaded_averages_are_taken_over() -> None:
    module = torch.nn.Linear(2, 1)
    average = Average(module, decay=0.9)
    average.load_state_dict({"weight": torch.full((1, 2), 3.0), "bias": torch.full((1,), 4.0)})
    with average.swapped_in():
        assert module.weight.tolist() == [[3.0, 3.0]] and module.bias.tolist() == [4.0]
