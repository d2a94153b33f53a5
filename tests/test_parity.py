"""The verdict on losses and on what a process has shown, and the witness that collects both."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import plan_of, run_of
from equal_runs import AOT, tiny

from trainer4090.ablation.parity import AMPLIFIED, Losses, allowances, compare
from trainer4090.ablation.proof import doubts, in_words
from trainer4090.executors.local import LocalExecutor
from trainer4090.log_point import LogPoints
from trainer4090.loop import Progress
from trainer4090.measuring import measure
from trainer4090.report import silent_report
from trainer4090.signals import StopRequest

RIGHT, CALM = (2.0, 1.8, 1.6, 1.4), (2.0002, 1.8001, 1.6001, 1.4)
WILD = (2.0002, 1.9, 3.0, 1.0)
"""Twins of a training that forgets noise and of one that amplifies it."""


@pytest.mark.parametrize(
    ("losses", "applied", "twin", "arithmetic", "dropout", "expected"),
    [
        (RIGHT, (), CALM, "float32", False, ("same", 4)),
        ((2.0, 1.8, 1.60001, 1.4), (), CALM, "float32", False, ("DIFFERS", 4)),
        ((2.0, 1.8, 1.601, 1.4), (), CALM, "float16", False, ("same", 4)),
        ((2.0, 1.8, 1.7, 1.4), (), CALM, "float16", False, ("DIFFERS", 4)),
        ((2.0, 1.8, 1.65, 1.4), (), CALM, "bfloat16", False, ("same", 4)),
        ((2.0, 1.8, 1.7, 1.4), (), WILD, "float32", False, ("same", 1)),
        ((2.1, 1.8, 1.6, 1.4), (), WILD, "float32", False, ("DIFFERS", 1)),
        ((2.0, 1.8, 1.7, 1.4), (1, 1, 2, 3), CALM, "float16", False, ("same", 2)),
        ((2.0, 1.8, 1.7, 1.4), (), CALM, "float32", True, ("unknown", 4)),
        ((float("nan"), 1.8, 1.6, 1.4), (), CALM, "bfloat16", False, ("DIFFERS", 4)),
        ((), (), CALM, "float32", False, ("unknown", 0)),
        ((2.1, 1.8, 1.6, 1.4), (), CALM, "fp8", False, ("same", 4)),
    ],
    ids=[
        *("equal", "fp32-off", "fp16-near", "fp16-off", "bf16-near", "amplified", "amplified-at-once", "skipped"),
        *("dropout", "nan", "nothing", "unknown-arithmetic"),
    ],
)
def test_verdicts(
    losses: tuple[float, ...],
    applied: tuple[int, ...],
    twin: tuple[float, ...],
    arithmetic: str,
    dropout: bool,
    expected: tuple[str, int],
) -> None:
    found = compare(Losses(losses, applied), Losses(RIGHT), Losses(twin), arithmetic, dropout)
    assert (found.verdict, found.num_compared) == expected
    assert found.verdict in str(found)


def test_more_noise_allows_more_until_it_says_nothing() -> None:
    twin = [loss * (1 + AMPLIFIED * factor) for loss, factor in zip(RIGHT, (0.01, 0.1, 0.5, 2), strict=True)]
    allowed = allowances(Losses(RIGHT), Losses(twin), "float32")
    assert len(allowed) == 3 and allowed == sorted(allowed) and allowed[0] < 1e-5


PLAIN = {"products": {"float32": 6}}
HALF = {"products": {"float16": 6}, "fused_optimizer_calls": 2}


@pytest.mark.parametrize(
    ("words", "active", "expected"),
    [
        ((), PLAIN, []),
        (("precision=amp",), HALF, []),
        (("precision=amp",), {**PLAIN, "fused_optimizer_calls": 2}, ["no product in float16"]),
        (("precision=amp",), {"products": {"float16": 6}}, ["no fused optimizer kernel"]),
        (("precision=amp",), {"graph_replays": 1}, []),
        (("kernels=fused",), {**PLAIN, "fused_optimizer_calls": 2}, ["nothing was compiled"]),
        (("kernels=fused",), {**PLAIN, "fused_optimizer_calls": 2, "compiled_graphs": 2}, []),
        (("memory=checkpoint",), PLAIN, ["nothing was recomputed"]),
        (("memory=checkpoint",), {**PLAIN, "recomputed": 3}, []),
        ((), {**PLAIN, "float32_products": "rounded to TF32"}, ["float32 products are rounded to TF32"]),
    ],
    ids=["fp32", "amp", "amp-off", "unfused", "graph", "uncompiled", "compiled", "kept", "recomputed", "tf32"],
)
def test_what_was_not_seen_is_doubted(words: tuple[str, ...], active: dict[str, Any], expected: list[str]) -> None:
    assert doubts(plan_of(*words), active) == expected
    assert in_words(active)


def measured(words: tuple[str, ...]) -> tuple[dict[str, Any], LogPoints]:
    """What a witness has seen of a few updates, and the windows that were measured."""
    quick = ("ablate.warm_up=3", "ablate.steps=4", "ablate.seconds=0", "train.log_every=2", "task=ablate")
    words = (*(word for word in tiny("cnn", *words) if not word.startswith("train.steps")), *quick, "train.steps=8")
    run = run_of(*words)
    points = LogPoints(silent_report(), torch.device("cpu"), None, None, dict)
    return measure(run, points, Progress(), StopRequest())(), points


@pytest.mark.parametrize(
    ("words", "products", "recomputed", "compiled"),
    [
        ((), "float32", False, False),
        (("precision=bf16",), "bfloat16", False, False),
        (("precision=amp",), "float16", False, False),
        (("memory=checkpoint",), "float32", True, False),
        ((*AOT, "precision=bf16"), "bfloat16", False, True),
    ],
    ids=["fp32", "bf16", "amp", "checkpoint", "compiled"],
)
def test_a_witness_tells_what_ran(words: tuple[str, ...], products: str, recomputed: bool, compiled: bool) -> None:
    torch._dynamo.reset()
    seen, _ = measured(words)
    active = seen["active"]
    assert list(active["products"]) == [products] and active["held_mib"] > 0
    assert (active.get("recomputed", 0) > 0) == recomputed
    assert ("compiled_calls" in active) == compiled
    assert ("fused_optimizer_calls" in active) == (compiled or "precision=amp" in words)
    assert (len(seen["first_losses"]), len(seen["first_times_ms"])) == (3, 2)
    assert seen["first_applied"] == ([1, 2, 3] if "precision=amp" in words else [])


def test_recomputing_holds_less() -> None:
    kept, recomputed = (measured(words)[0]["active"]["held_mib"] for words in ((), ("memory=checkpoint",)))
    assert recomputed < kept / 2


def test_noise_is_another_start() -> None:
    plain, again, noisy = (
        measured(words)[0]["first_losses"][0] for words in ((), (), ("ablate.noise=0.000244140625",))
    )
    assert plain == again != noisy and abs(plain - noisy) / plain < 0.01


def test_the_warm_up_is_in_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    step, count = LocalExecutor.step, 0

    def slow_at_first(self: LocalExecutor, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        time.sleep(0.2 if count <= 3 else 0)
        return step(self, *arguments, **named)

    monkeypatch.setattr(LocalExecutor, "step", slow_at_first)
    seen, points = measured(())
    assert min(seen["first_times_ms"]) > 200
    summary = points.summary()
    assert summary.step_time_ms is not None and summary.step_time_ms < 100
    assert sum(window.num_updates for window in points.windows) == count - 3


def test_it_writes_nothing_but_its_log(tmp_path: Path) -> None:
    measured(())
    assert not list(tmp_path.iterdir())
