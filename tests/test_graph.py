"""`kernels=graph`: the same update over fixed tensors. What a CPU can show of it; `test_gpu_graph.py` captures."""

from __future__ import annotations

import gc
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import runs
import torch
from conftest import REPOSITORY, plan_of, run_of
from equal_runs import assert_same, state_of, tiny
from test_accumulation import ragged

from trainer4090.build import Run
from trainer4090.card import load
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.errors import ConfigError
from trainer4090.executors.graph import MOST_SHAPES, WARM_UP, GraphExecutor, Replay, without_collection
from trainer4090.records import Batch

UNCAPTURED = ("kernels=fused", "kernels.fused.compile=false", "kernels.fused.channels_last=false")
"""The same kernels: a fused optimizer and nothing else."""
EXACT_RATE = ("schedule=constant", "optimizer.lr=0.0078125")
"""A power of two: rates on the device are fp32."""
EVERYTHING = ("train.micro_batch=4", "train.clip_norm=1", "ema.decay=0.9")
PRECISIONS = {
    "fp32": ("precision=fp32",),
    "bf16": ("precision=bf16",),
    # Overflows among the first updates, is halved and doubled again.
    "amp": ("precision=amp", "precision.initial_scale=1.0e9", "precision.growth_interval=2"),
}


def batches_of(run: Run, num_batches: int) -> list[Batch]:
    batches = training_batches(run.data.train, run.loss.count, 8, 0, Position(0, 0), num_workers=0, pin=False)
    return [next(batches)[0] for _ in range(num_batches)]


def outcome(run: Run, batches: list[Batch]) -> tuple[list[float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    losses = [float(run.executor.step(batch, observe=number % 3 == 0).loss) for number, batch in enumerate(batches)]
    return losses, state_of(run), run.executor.state_dict()["average"] or {}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("words", [(), EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "char_lstm"])
def test_equals_the_same_kernels_uncaptured(model: str, words: tuple[str, ...], precision: str) -> None:
    common = tiny(model, "model.dropout=0.1", *EXACT_RATE, *words, *PRECISIONS[precision])
    uncaptured, graph = run_of(*common, *UNCAPTURED), run_of(*common, "kernels=graph")
    batches = batches_of(graph, 9)
    batches[6] = replace(batches[6], inputs=batches[6].inputs[:5], targets=batches[6].targets[:5])  # an epoch's last
    batches[6] = replace(batches[6], num_targets=graph.loss.count(batches[6].targets))
    batches[4], batches[7] = ragged(batches[4]), ragged(batches[7])
    expected, found = outcome(uncaptured, batches), outcome(graph, batches)
    assert found[0] == expected[0]
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert_same(other, one)


class Recorder:
    """Counts what is recorded, and lets a captured update see its fixed tensors only."""

    def __init__(self, run: Run) -> None:
        assert isinstance(run.executor, GraphExecutor)
        self.num_recorded = 0
        self._inner = run.executor._capture
        run.executor._capture = self

    def aside(self):
        return self._inner.aside()

    def record(self, function: Replay) -> Replay:
        self.num_recorded += 1
        return self._inner.record(function)


def test_is_recorded_once_a_shape_with_and_without_observation() -> None:
    run = run_of(*tiny("mlp", "kernels=graph"))
    recorder = Recorder(run)
    batches = batches_of(run, WARM_UP + 4)
    for batch in batches[:WARM_UP]:
        run.executor.step(batch, observe=True)
    assert recorder.num_recorded == 0
    for batch in batches[WARM_UP:]:
        run.executor.step(batch, observe=False)
    assert recorder.num_recorded == 1
    for batch in batches[WARM_UP:]:
        run.executor.step(batch, observe=True)
    assert recorder.num_recorded == 2
    for _ in range(WARM_UP + 2):
        tail = replace(batches[0], inputs=batches[0].inputs[:3], targets=batches[0].targets[:3], num_targets=3)
        run.executor.step(tail, observe=False)
    assert recorder.num_recorded == 2


def cut(batch: Batch, length: int) -> Batch:
    targets = batch.targets[:, :length]
    return Batch(batch.inputs[:, :length], targets, targets.numel())


def test_sequences_of_varying_length_have_a_recording_each() -> None:
    words = tiny("char_lstm", *EXACT_RATE)
    uncaptured, graph = run_of(*words, *UNCAPTURED), run_of(*words, "kernels=graph")
    recorder = Recorder(graph)
    batches = [cut(batch, 4 + number % 3) for number, batch in enumerate(batches_of(graph, 15))]
    expected, found = outcome(uncaptured, batches), outcome(graph, batches)
    assert found[0] == expected[0]
    assert_same(expected[1], found[1])
    assert recorder.num_recorded in range(3, 7)


def test_no_end_of_shapes_is_refused() -> None:
    words = ("data=text", "data.length=16")
    run = run_of(*tiny("char_lstm", *words, "kernels=graph"))
    batch = batches_of(run, 1)[0]
    with pytest.raises(ConfigError, match=f"more than {MOST_SHAPES} shapes of a batch, the last \\(8, 10\\)"):
        for length in range(2, 17):
            for _ in range(WARM_UP + 1):
                run.executor.step(cut(batch, length), observe=False)


def test_what_cannot_be_captured_is_refused_with_the_reason() -> None:
    run = run_of(*tiny("mlp", "kernels=graph"))
    recorder, batches = Recorder(run), batches_of(run, WARM_UP + 1)

    def record(function: Replay) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    recorder.record = record  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"cannot capture .* \(operation not permitted when stream is capturing\)"):
        for batch in batches:
            run.executor.step(batch, observe=False)


@pytest.mark.parametrize("variant", ["cnn", "mlp-amp-ema", "gpt"])
def test_resume_is_exact(tmp_path: Path, variant: str) -> None:
    words = (*runs.VARIANTS[variant], "kernels=graph", "train.checkpoint_every=7")
    whole, part = (runs.new_folder(tmp_path / name) for name in ("whole", "part"))
    assert runs.train(whole, *words) == 0
    with runs.signalled_after(19):
        assert runs.train(part, *words) == 143
    other = Path(shutil.copytree(part, tmp_path / "other", symlinks=True))
    assert runs.train(part, "resume=run") == 0
    assert runs.differences(runs.outcome(part), runs.outcome(whole)) == []
    assert runs.train(other, "resume=run", "kernels=eager") == 0


@pytest.mark.parametrize(("card", "says"), [("cpu", True), ("rtx4090", False)])
def test_the_plan_says_what_a_cpu_cannot_do(card: str, says: bool) -> None:
    text = plan_of("kernels=[fused,graph]", card=load(REPOSITORY / f"conf/card/{card}.yaml")).describe()
    assert ("kernels: asked graph, got the update launched anew each time" in text) is says
    assert ("CAPTURE: the whole update as one CUDA graph" in text) is not says


class Cycle:
    """Garbage that only the collector finds."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


def test_no_garbage_is_collected_while_an_update_is_captured() -> None:
    Cycle()
    with without_collection():
        assert Cycle.alive == 0
        Cycle()
        containers = [[] for _ in range(10_000)]  # many times the number after which the youngest are looked through
        assert Cycle.alive == 1 and containers
    assert gc.isenabled()
