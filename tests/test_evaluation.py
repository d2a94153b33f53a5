"""Evaluation counts every held-out sample once, as the trained model would see it, and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from conftest import run_of, train_updates
from equal_runs import AOT, assert_same, state_of, tiny
from torch.nn import functional

from trainer4090.build import Run
from trainer4090.loop import evaluate


def by_hand(run: Run) -> tuple[float, float]:
    """Loss and accuracy over all held-out samples at once."""
    module = run.executor.forward.module.eval()
    inputs, targets = run.data.evaluation.fetch(torch.arange(len(run.data.evaluation)), -1)
    with torch.no_grad():
        outputs = module(run.executor.forward.prepare(inputs)).flatten(0, -2)
    module.train()
    loss = functional.cross_entropy(outputs, targets.flatten())
    return float(loss), float((outputs.argmax(-1) == targets.flatten()).float().mean())


@pytest.mark.parametrize("kernels", [(), AOT], ids=["eager", "fused"])
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_equals_one_pass_over_all_samples(model: str, kernels: tuple[str, ...]) -> None:
    run = run_of(*tiny(model, "model.dropout=0.5", *kernels, batch_size=64))
    train_updates(run, 3)
    before, random_state = state_of(run), torch.get_rng_state()
    found = evaluate(run)
    assert (found["loss"], found["accuracy"]) == pytest.approx(by_hand(run), rel=1e-5)
    assert_same(state_of(run), before)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert run.executor.forward.module.training


@pytest.mark.parametrize("micro_batch", [1, 7, 64])
def test_the_size_of_batches_does_not_show(micro_batch: int) -> None:
    run = run_of(
        "model=mlp", "model.hidden=[16]", f"train.micro_batch={micro_batch}", f"train.batch_size={micro_batch}"
    )
    assert evaluate(run)["loss"] == pytest.approx(by_hand(run)[0], rel=1e-6)


def test_the_averages_are_evaluated() -> None:
    run = run_of(*tiny("cnn", "ema.decay=0.9"))
    train_updates(run, 5)
    average = run.executor.average
    assert average is not None
    with average.swapped_in():
        expected = by_hand(run)
    assert evaluate(run)["loss"] == pytest.approx(expected[0], rel=1e-5)
    assert by_hand(run)[0] != pytest.approx(expected[0], rel=1e-3)
