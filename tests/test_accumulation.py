"""Accumulated micro-batches are the full batch: one divisor, known beforehand, for every update."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import plan_of, run_of
from equal_runs import assert_near, batch_of, executor_of, scalar_module, state_of, tiny, weight_of
from torch import nn

from trainer4090.build import Run
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.records import Batch, Loss

IGNORED = -100
FP64_TOLERANCE = 1e-12


def ragged(batch: Batch) -> Batch:
    """The batch with ever fewer targets ignored; the first two samples, a micro-batch of two, have none that count."""
    targets = batch.targets.clone()
    if targets.ndim == 1:
        targets[:2], targets[4] = IGNORED, IGNORED
    else:
        for row, sample in enumerate(targets):
            sample[: len(sample) - row if row > 1 else None] = IGNORED
    return replace(batch, targets=targets, num_targets=int((targets != IGNORED).sum()))


def trained(run: Run, num_updates: int, masked: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    batches = training_batches(
        run.data.train, run.loss.count, 8, seed=0, start=Position(0, 0), num_workers=0, pin=False
    )
    losses = []
    for _ in range(num_updates):
        batch, _ = next(batches)
        losses.append(run.executor.step(ragged(batch) if masked else batch, observe=True).loss)
    return torch.stack(losses), state_of(run)


@pytest.mark.parametrize("masked", [False, True], ids=["all_targets", "ragged_targets"])
@pytest.mark.parametrize("accumulation", [2, 4, 8])
@pytest.mark.parametrize("model", ["mlp", "gpt", "char_lstm"])
def test_equals_the_full_batch(model: str, accumulation: int, masked: bool) -> None:
    words = tiny(model, "train.clip_norm=1.0")
    losses, state = trained(run_of(*words, dtype=torch.float64), 4, masked)
    parts = run_of(*words, f"train.micro_batch={8 // accumulation}", dtype=torch.float64)
    part_losses, part_state = trained(parts, 4, masked)
    assert losses.dtype == torch.float64
    torch.testing.assert_close(part_losses, losses, rtol=FP64_TOLERANCE, atol=0)
    assert_near(state, part_state, FP64_TOLERANCE)


def test_tail_of_an_epoch_has_its_own_divisor() -> None:  # case B01: 18 samples in batches of 8, micro-batches of 4
    module = scalar_module()
    executor = executor_of(module, micro_batch=4)
    for size in (8, 8, 2):
        executor.step(batch_of(torch.ones(size, 1)), observe=False)
    assert weight_of(module) == -3.0


def test_ragged_tail_of_a_run_has_its_own_divisor() -> None:
    run = run_of(*tiny("mlp", "data.limit=11", "train.micro_batch=2"), dtype=torch.float64)
    whole = run_of(*tiny("mlp", "data.limit=11"), dtype=torch.float64)
    losses, state = trained(run, 4, masked=False)
    whole_losses, whole_state = trained(whole, 4, masked=False)
    torch.testing.assert_close(losses, whole_losses, rtol=FP64_TOLERANCE, atol=0)
    assert_near(whole_state, state, FP64_TOLERANCE)


MASKED_SUM = Loss(
    total=lambda outputs, targets: (outputs.squeeze(-1) * (targets != IGNORED)).sum(),
    count=lambda targets: int((targets != IGNORED).sum()),
)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_a_long_and_a_short_sequence_weigh_by_their_tokens(micro_batch: int) -> None:  # case B03
    inputs = torch.tensor([[1.0] * 8, [6.0] * 2 + [0.0] * 6]).unsqueeze(-1)
    targets = torch.tensor([[0] * 8, [0] * 2 + [IGNORED] * 6])
    module = scalar_module()
    executor = executor_of(module, micro_batch, loss=MASKED_SUM)
    executor.step(batch_of(inputs, targets, MASKED_SUM.count(targets)), observe=False)
    assert weight_of(module) == -2.0  # (8 x 1 + 2 x 6) / 10; a mean of means gives -3.5


def test_an_update_without_targets_moves_nothing() -> None:
    run = run_of(*tiny("mlp", "optimizer.weight_decay=0"))
    before = state_of(run)
    inputs, _ = run.data.train.fetch(torch.arange(8), 0)
    output = run.executor.step(Batch(inputs, torch.full((8,), IGNORED), 0), observe=True)
    assert float(output.loss) == 0.0
    assert_near(before, state_of(run), 0.0)


BATCH_NORM = {1: (1, 0.3500, 1.5000), 2: (2, 0.6850, 1.1267), 4: (4, 1.2940, 0.8280)}


@pytest.mark.parametrize(("chunks", "expected"), BATCH_NORM.items(), ids=str)
def test_batch_norm_sees_micro_batches(chunks: int, expected: tuple[int, float, float]) -> None:  # case B15
    norm = nn.BatchNorm1d(1)
    executor = executor_of(norm, micro_batch=8 // chunks)
    executor.step(batch_of(torch.arange(8.0).unsqueeze(1)), observe=False)
    found = [float(buffer) for buffer in (norm.num_batches_tracked, norm.running_mean, norm.running_var)]  # type: ignore
    assert found == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("model", "noticed"), [("cnn", True), ("mlp", False)])
def test_the_plan_says_what_batch_norm_sees(model: str, noticed: bool) -> None:
    text = plan_of(f"model={model}", "train.batch_size=64", "train.micro_batch=16").describe()
    assert "batch         64 = 16 micro-batch x 4 accumulation" in text
    assert ("asked batches of 64, got statistics of 16 samples: BatchNorm sees one micro-batch" in text) == noticed
