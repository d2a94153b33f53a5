"""Schedules are torch's own curves, in one unit: applied updates."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from conftest import plan_of, run_of
from equal_runs import tiny
from torch.optim import lr_scheduler

from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.schedules import SCHEDULES, Horizon, Schedule

TOTALS = [2, 4, 10, 101]


def schedule(name: str, **fields: Any) -> Schedule:
    entry = SCHEDULES.get(name)
    return entry.build(entry.config(**fields))


def factors(made: Schedule, total: int, per_epoch: int = 1) -> list[float]:
    return [made.factor(update, Horizon(total, per_epoch)) for update in range(total)]


def torchs(total: int, make: Any) -> list[float]:
    """Rates of torch's scheduler over the updates of a run whose peak rate is 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for update in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if update < total - 1:
            scheduler.step()
    return rates


@pytest.mark.parametrize("warmup", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("total", TOTALS[1:])
def test_onecycle_is_torchs(total: int, warmup: float) -> None:
    reference = torchs(total, lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=total, pct_start=warmup, cycle_momentum=False))  # fmt: skip
    assert factors(schedule("onecycle", warmup_fraction=warmup), total) == pytest.approx(reference, abs=1e-12)


@pytest.mark.parametrize("total", TOTALS)
def test_cosine_is_torchs(total: int) -> None:
    reference = torchs(total, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, total - 1, eta_min=0.1))
    made = schedule("cosine", warmup_fraction=0.0, final_factor=0.1)
    assert factors(made, total) == pytest.approx(reference, abs=1e-9)


def test_cosine_warms_up_linearly_to_the_peak() -> None:
    found = factors(schedule("cosine", warmup_fraction=0.25), 20)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[4:] == sorted(found[4:], reverse=True)


@pytest.mark.parametrize(("unit", "per_epoch"), [("update", 1), ("epoch", 1), ("epoch", 3)])
def test_multistep_is_torchs(unit: str, per_epoch: int) -> None:
    reference = torchs(10, lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 3, 7], gamma=0.5))
    made = schedule("multistep", milestones=(7, 2, 3), gamma=0.5, unit=unit)
    assert factors(made, 10 * per_epoch, per_epoch)[::per_epoch] == pytest.approx(reference)


ENDING = {
    "cosine": ({}, 0.0),
    "cosine_late": ({"warmup_fraction": 0.95}, 0.0),
    "onecycle": ({}, 1 / 250000),
    "onecycle_late": ({"warmup_fraction": 0.99}, 1 / 250000),
}


@pytest.mark.parametrize("total", TOTALS)
@pytest.mark.parametrize("case", ENDING)
def test_the_last_update_alone_has_the_end_value(case: str, total: int) -> None:
    fields, end = ENDING[case]
    found = factors(schedule(case.removesuffix("_late"), **fields), total)
    assert found[-1] == pytest.approx(end, abs=1e-12)
    assert all(factor > end + 1e-6 for factor in found[:-1])


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_a_run_of_one_update_works_at_the_peak(name: str) -> None:
    assert factors(schedule(name), 1) == [1.0]


@pytest.mark.parametrize("name", SCHEDULES.names())
@pytest.mark.parametrize("total", [1, 2, 3, 1000])
def test_factors_are_fractions_of_the_peak(name: str, total: int) -> None:
    assert all(math.isfinite(factor) and 0 <= factor <= 1 + 1e-12 for factor in factors(schedule(name), total))


PRECISION = {
    "fp32": ("precision=fp32",),
    "amp": ("precision=amp", "precision.initial_scale=64"),
    "graph": ("kernels=graph",),  # counted on the device
}


@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("name", ["cosine", "onecycle"])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_rates_are_counted_in_updates(accumulation: int, name: str, precision: str) -> None:  # case B04
    batch_size = 4 * accumulation
    words = ("data.limit=40", "train.epochs=2", "train.micro_batch=4", f"schedule={name}", *PRECISION[precision])
    run = run_of("model=mlp", "model.hidden=[8]", f"train.batch_size={batch_size}", "optimizer.lr=1", *words)
    total = 2 * math.ceil(40 / batch_size)
    assert (run.plan.horizon.total, run.plan.horizon.per_epoch) == (total, total // 2)
    batches = training_batches(run.data.train, run.loss.count, batch_size, 0, Position(0, 0), 0, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates = [float(run.executor.step(next(batches)[0], observe=False).learning_rate) for _ in range(total)]
    end = {"cosine": 0.0, "onecycle": 1 / 250000}[name]
    assert rates[-1] == pytest.approx(end, abs=1e-7)
    assert all(rate > end + 1e-3 for rate in rates[:-1])


def test_a_plan_of_steps_has_that_many_updates() -> None:
    assert plan_of(*tiny("mlp", "train.steps=7")).horizon.total == 7
