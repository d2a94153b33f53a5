"""The end of an update: scaling, skipping, clipping, and that nothing is read back from the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import run_of, train_updates
from equal_runs import CPU, batch_of, executor_of, scalar_module, state_of, tiny, weight_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer4090.executors.average import Average
from trainer4090.executors.local import LocalExecutor
from trainer4090.executors.update import ScaledUpdate
from trainer4090.precision import LossScale

SCALE = LossScale(initial=65536.0, growth_interval=2000, floor=2.0**-14)


def overflow(executor: LocalExecutor) -> Any:
    return executor.step(batch_of(torch.full((2, 1), torch.inf)), observe=True)


def good(executor: LocalExecutor) -> Any:
    return executor.step(batch_of(torch.ones(2, 1)), observe=True)


def test_a_skipped_update_moves_nothing_but_the_scale() -> None:  # case B06
    module = scalar_module(weight=1.0)
    average = Average(module, decay=0.5)
    executor = executor_of(module, 2, scale=SCALE, average=average, rates=[0.5, 0.25, 0.125])

    def standing() -> tuple[float, float]:
        return weight_of(module), float(average.state_dict()["weight"])

    first = good(executor)
    assert (standing(), float(first.learning_rate), int(first.applied)) == ((0.5, 0.75), 0.5, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        skipped = overflow(executor)
    assert standing() == (0.5, 0.75)
    assert (float(skipped.loss_scale), int(skipped.applied), bool(skipped.diverged)) == (65536.0, 1, False)
    second = good(executor)
    assert (float(second.learning_rate), float(second.loss_scale), int(second.applied)) == (0.25, 32768.0, 2)
    assert standing() == (0.25, 0.5)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("scale", [None, SCALE], ids=["plain", "scaled"])
def test_clips_once_after_unscaling(scale: LossScale | None, accumulation: int) -> None:  # case B07
    module = nn.Linear(2, 1, bias=False)
    before = module.weight.detach().clone()
    executor = executor_of(module, 2 // accumulation, scale=scale, clip_norm=1.0)
    output = executor.step(batch_of(torch.tensor([[3.0, 4.0], [3.0, 4.0]])), observe=False)
    assert float(output.grad_norm) == pytest.approx(5.0)
    assert float((module.weight.detach() - before).norm()) == pytest.approx(1.0)


def test_one_overflowed_micro_batch_skips_the_whole_update() -> None:
    module = scalar_module(weight=1.0)
    executor = executor_of(module, 1, scale=SCALE)
    executor.step(batch_of(torch.tensor([[1.0], [torch.inf]])), observe=False)
    assert weight_of(module) == 1.0


def test_the_scale_doubles_after_the_growth_interval_of_good_updates() -> None:
    executor = executor_of(scalar_module(), 2, scale=LossScale(1024.0, growth_interval=2, floor=1.0))
    steps = [good, good, good, overflow, good, good, good]
    scales = [float(step(executor).loss_scale) for step in steps]
    assert scales == [1024.0, 1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0]


def test_overflows_down_to_the_floor_are_divergence() -> None:
    executor = executor_of(scalar_module(), 2, scale=LossScale(8.0, growth_interval=2000, floor=2.0))
    outputs = [overflow(executor) for _ in range(5)]
    assert [float(output.loss_scale) for output in outputs] == [8.0, 4.0, 2.0, 2.0, 2.0]
    assert [bool(output.diverged) for output in outputs] == [False, False, True, True, True]
    assert not bool(good(executor).diverged)


@contextmanager
def empty_memory_is_nan() -> Iterator[None]:
    """Let memory that torch does not initialise hold NaN, which shows whoever reads it."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_torchs_own_fused_sgd_loses_its_momentum_in_a_first_skipped_update() -> None:
    """The defect that `optimizers/sgd.py` works around; when this fails, the work-around can go."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer: Any = torch.optim.SGD([weight], lr=1.0, momentum=0.9, fused=True)
    weight.grad = torch.ones(2)
    with empty_memory_is_nan():
        for found_inf in (1.0, 0.0):
            optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(found_inf)
            optimizer.step()
    assert weight.isnan().all()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_update_after_a_first_skipped_one_is_a_fresh_first_update(optimizer: str) -> None:
    words = tiny("mlp", "precision=amp", f"optimizer={optimizer}", "precision.initial_scale=1024")
    skipping, fresh = run_of(*words), run_of(*words)
    inputs, targets = skipping.data.train.fetch(torch.arange(8), 0)
    before = state_of(skipping)
    with empty_memory_is_nan():
        outputs = skipping.executor.step(batch_of(inputs.float().fill_(torch.nan), targets), observe=False)
        assert int(outputs.applied) == 0  # type: ignore[arg-type]
        assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(skipping).items())
        train_updates(skipping, 2)
        train_updates(fresh, 2)
    for name, tensor in state_of(fresh).items():
        torch.testing.assert_close(state_of(skipping)[name], tensor, rtol=0, atol=1e-5)


class NoReading(TorchDispatchMode):
    """Refuses to bring a value to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        forbidden = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        assert func not in forbidden, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("memory", ["none", "checkpoint"])
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_an_update_reads_nothing_back(model: str, memory: str, precision: str) -> None:
    words = (f"precision={precision}", f"memory={memory}", "train.micro_batch=4", "train.clip_norm=1", "ema.decay=0.9")
    run = run_of(*tiny(model, *words))
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    batch = batch_of(inputs, targets, targets.numel())
    with NoReading():
        for _ in range(2):
            run.executor.step(batch, observe=True)


def test_reading_a_value_back_is_noticed() -> None:
    with NoReading(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3)[torch.tensor(1)]


def test_the_last_rate_holds_beyond_the_end() -> None:
    optimizer = torch.optim.SGD(scalar_module().parameters(), lr=1.0, fused=True)
    update = ScaledUpdate(optimizer, [0.5, 0.25], None, SCALE, CPU)
    update.load_state_dict({"applied": 7, "scale": 4.0, "good_updates": 1})
    assert float(update.apply((torch.zeros(()),), 1, None).learning_rate) == 0.25
    assert update.state_dict() == {"applied": 8, "scale": 4.0, "good_updates": 2}
