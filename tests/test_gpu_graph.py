"""Captured updates on a GPU: the same training bit for bit, nothing waited for, copies beside the computation."""

from __future__ import annotations

import gc
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from conftest import command, plan_of
from equal_runs import assert_same, state_of, tiny
from test_accumulation import ragged
from test_graph import EVERYTHING, EXACT_RATE, UNCAPTURED, batches_of

from trainer4090 import loop
from trainer4090.build import Run, build
from trainer4090.log_point import LogPoints

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    # torch 2.11's compiler meets deprecations of Python 3.12 in its own code when it is imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
DEVICE = torch.device("cuda", 0)
MODELS = ["mlp", "cnn", "resnet", "gpt", "char_lstm"]
PRECISIONS = {
    "fp32": ("precision=fp32",),
    "bf16": ("precision=bf16",),
    "amp": ("precision=amp", "precision.initial_scale=1.0e9", "precision.growth_interval=2"),
}
CAPTURED = {
    "eager": (UNCAPTURED, ("kernels=graph",)),
    "compiled": (("kernels=fused",), ("kernels=[fused,graph]",)),
}
"""The same kernels, launched one by one and captured."""


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    torch._dynamo.reset()
    yield
    torch.use_deterministic_algorithms(False)
    gc.collect()


def on_gpu(*words: str) -> Run:
    return build(plan_of(*words), DEVICE, lambda text: None)


def outcome(run: Run, batches: list[Any]) -> tuple[list[float], dict[str, torch.Tensor], dict[str, Any]]:
    torch.manual_seed(1)
    losses = [float(run.executor.step(batch, observe=number % 3 == 0).loss) for number, batch in enumerate(batches)]
    return losses, state_of(run), run.executor.state_dict()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("words", [(), EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("model", MODELS)
def test_equals_the_same_kernels_uncaptured(model: str, words: tuple[str, ...], precision: str) -> None:
    assert_equal(model, words, precision, "eager")


@pytest.mark.parametrize(
    ("model", "precision", "words"),
    # No ResNet: torch 2.11's compiler expects another layout of a gradient than cuDNN gives in deterministic mode.
    [*((model, "bf16", ()) for model in MODELS if model != "resnet"), ("mlp", "amp", EVERYTHING), ("gpt", "amp", ())],
)
def test_equals_the_same_compiled_kernels_uncaptured(model: str, precision: str, words: tuple[str, ...]) -> None:
    assert_equal(model, words, precision, "compiled")


def assert_equal(model: str, words: tuple[str, ...], precision: str, kernels: str) -> None:
    dropout = () if model == "resnet" else ("model.dropout=0.1",)
    common = tiny(model, *dropout, *EXACT_RATE, *words, *PRECISIONS[precision])
    uncaptured, graph = (on_gpu(*common, *chosen) for chosen in CAPTURED[kernels])
    batches = batches_of(graph, 9)
    if (
        kernels == "eager"
    ):  # the compiler, once it has met another size, takes kernels for any size if nothing is captured
        tail = replace(batches[6], inputs=batches[6].inputs[:4], targets=batches[6].targets[:4])
        batches[6] = replace(tail, num_targets=graph.loss.count(tail.targets.cpu()))
    batches[4], batches[7] = ragged(batches[4]), ragged(batches[7])
    expected, found = outcome(uncaptured, batches), outcome(graph, batches)
    assert found[0] == expected[0]
    assert_same(expected[1], found[1])
    assert found[2]["update"] == expected[2]["update"]
    if expected[2]["average"] is not None:
        assert_same(expected[2]["average"], found[2]["average"])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_states_in_8_bits_stay_where_a_captured_update_finds_them(optimizer: str) -> None:
    words = ("memory=lowbit", "memory.lowbit.min_elements=64", f"optimizer={optimizer}", *EXACT_RATE)
    uncaptured, graph = on_gpu(*tiny("mlp", *words, *UNCAPTURED)), on_gpu(*tiny("mlp", *words, "kernels=graph"))
    batches = batches_of(graph, 8)
    expected, found = outcome(uncaptured, batches), outcome(graph, batches)
    assert found[0] == expected[0]
    assert_same(expected[1], found[1])


@pytest.mark.parametrize("model", ["cnn", "resnet", "gpt"])
def test_recomputes_inside_a_captured_update(model: str) -> None:
    dropout = () if model == "resnet" else ("model.dropout=0",)
    words = tiny(model, *dropout, *EXACT_RATE, "precision=bf16", "memory=checkpoint")
    uncaptured, graph = on_gpu(*words, *UNCAPTURED), on_gpu(*words, "kernels=graph")
    batches = batches_of(graph, 6)
    expected, found = outcome(uncaptured, batches), outcome(graph, batches)
    assert found[0] == expected[0]
    assert_same(expected[1], found[1])


READING = '''\
from dataclasses import dataclass

import torch
from torch import nn

from trainer4090.extend import *


class Reading(nn.Module):
    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.layer = nn.Linear(num_inputs, num_outputs)

    def forward(self, inputs):
        outputs = self.layer(inputs.flatten(1))
        return outputs * (1.0 if outputs.sum().item() > 0 else 2.0)


@dataclass(frozen=True)
class Config:
    pass


@MODELS.register("reading", Config)
def reading(config, data):
    """What it does next depends on a value on the device."""
    return Model(Reading(torch.Size(data.item_shape).numel(), data.num_classes), ())
'''


def test_what_reads_the_device_is_refused_with_the_reason(tmp_path: Path) -> None:
    """In a process of its own: after a capture that failed, torch 2.11 draws no random numbers on the device."""
    (tmp_path / "reading.py").write_text(READING, encoding="utf-8")
    own = ("plugin=./reading.py", "model=reading", "data=digits", "run.dir=run", "train.steps=6", "train.epochs=null")
    done = command([*own, "kernels=graph", "device=cuda"], tmp_path, gpu=True)
    assert done.returncode == 2, done
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("trainer4090: error: ")]
    says = r"trainer4090: error: kernels: graph cannot capture the update of this model \(.*captur.*"
    assert re.fullmatch(says, line), line


LARGE_CNN = (
    *("device=cuda", "run.dir=run", "train.epochs=null", "model=resnet50", "data=synthetic_images", "debug=true"),
    *("data.num_classes=16", "data.pool_size=4000", "data.num_evaluation=64", "precision=bf16"),
    *("train.steps=80", "train.batch_size=128", "train.log_every=10", "train.eval_every=80"),
)
"""Its pool of images is too large to be kept on the card, and the card is slower than the host that launches for it.

16 classes: with 10 (and ResNet-18) torch 2.11's compiler failed behind other tests of the process, on "Offset increment
outside graph capture". Why was not looked into; most likely it draws numbers there to time a padded product.
"""
FORBIDDEN = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaFree", "cudaMallocAsync")


def traced(work: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    """Events of 50 steady updates, up to where the last of them was handed to the device."""
    update = loop.next_update
    profiler = torch.profiler.profile(activities=list(torch.profiler.supported_activities()), acc_events=True)

    def watched(run: Run, batches: Any, points: LogPoints, progress: loop.Progress) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the profiler itself
            if progress.step == 20:
                torch.cuda.synchronize()
                profiler.start()
            with torch.profiler.record_function("our update"):
                output = update(run, batches, points, progress)
            if progress.step == 70:
                profiler.stop()  # which waits for the device: a call of its own, after the updates
        return output

    monkeypatch.setattr(loop, "next_update", watched)
    torch.use_deterministic_algorithms(False)
    assert runs.train(work, *words) == 0
    return list(profiler.events() or ())


def on_device(events: list[Any]) -> tuple[list[Any], list[Any]]:
    """Time ranges of copies to the device that take a while, and of kernels."""
    there = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    copies = [event.time_range for event in there if "HtoD" in event.name and event.time_range.elapsed_us() > 50]
    named = ("Memcpy", "Memset", "our update")
    return copies, [event.time_range for event in there if not event.name.startswith(named)]


def overlaps(copy: Any, kernels: list[Any]) -> bool:
    return any(one.start < copy.end and copy.start < one.end for one in kernels)


@pytest.mark.parametrize("kernels", ["eager", "graph", "[fused,graph]"])
def test_fifty_updates_neither_wait_nor_take_memory_and_copy_beside_the_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    events = traced(runs.new_folder(tmp_path / "work"), monkeypatch, *LARGE_CNN, f"kernels={kernels}")
    updates = [
        event.time_range
        for event in events
        if event.name == "our update" and event.device_type == torch.autograd.DeviceType.CPU
    ]
    assert len(updates) == 50
    end = max(update.end for update in updates)
    assert not [event.name for event in events if event.name in FORBIDDEN and event.time_range.start < end]
    copies, kernel = on_device(events)
    assert len(copies) >= 45
    assert sum(overlaps(copy, kernel) for copy in copies) >= 0.8 * len(copies)


def test_without_the_stream_copies_stand_between_the_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above, which is an option too."""
    words = (*LARGE_CNN, "kernels=eager", "data.prefetch_stream=false")
    copies, kernel = on_device(traced(runs.new_folder(tmp_path / "work"), monkeypatch, *words))
    assert copies and not [copy for copy in copies if overlaps(copy, kernel)]
