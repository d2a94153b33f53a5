"""What only a GPU shows of a run: no synchronisation in the steady loop, exact resume, exhausted memory."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from conftest import run_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer4090 import checkpoint_file, loop
from trainer4090.log_point import LogPoints

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def on_gpu(words: tuple[str, ...]) -> tuple[str, ...]:
    return ("device=cuda", *(word for word in words if not word.startswith("device")))


CNN = on_gpu(runs.CNN)
IMAGES = (*on_gpu(runs.IMAGES), runs.WORKERS, "data.mean=[120,115,105]")
"""Pinned pairs of images and flips from worker processes, and a normalisation with its own numbers a channel."""
FROZEN = (*CNN, "model.freeze=[blocks.0]")
GRAPH = (*CNN, "kernels=graph", "precision=amp")
BROUGHT = {"images": IMAGES, "frozen": FROZEN, "graph": GRAPH, "graph-images": (*IMAGES, "kernels=graph")}
PRECISIONS = ("fp32", "amp", "bf16")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return runs.new_folder(tmp_path / "work")


@pytest.fixture
def whole_memory() -> Iterator[None]:
    gc.collect()  # of the tests before: what they hold counts
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("words", [(), ("ema.decay=0.9", "train.clip_norm=1", "train.micro_batch=32")], ids=runs.shown)
def test_steady_loop_never_waits_for_the_device(
    work: Path, monkeypatch: pytest.MonkeyPatch, precision: str, words: tuple[str, ...]
) -> None:
    """From the third update on; log points are among them. An evaluation or a save may wait."""
    assert_never_waits(work, monkeypatch, *CNN, f"precision={precision}", *words)


@pytest.mark.parametrize("words", BROUGHT.values(), ids=BROUGHT)
def test_steady_loop_never_waits_for_what_users_bring(
    work: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert_never_waits(work, monkeypatch, *words)


def assert_never_waits(work: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    update = loop.next_update

    def strict(run: Any, batches: Any, points: LogPoints, progress: loop.Progress) -> Any:
        if progress.step >= 3:
            torch.cuda.set_sync_debug_mode("error")
        try:
            return update(run, batches, points, progress)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(loop, "next_update", strict)
    assert runs.train(work, *words, "train.log_every=2", "train.eval_every=99") == 0
    assert len(runs.metrics(work)) == 20


def test_a_reading_in_the_loop_is_noticed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above."""
    count = LogPoints.count

    def reading(self: LogPoints, num_items: int, waited_s: float) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.ones((), device="cuda").item()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        count(self, num_items, waited_s)

    monkeypatch.setattr(LogPoints, "count", reading)
    assert runs.train(work, *CNN) == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resume_is_exact(tmp_path: Path, precision: str) -> None:
    words = (*CNN, f"precision={precision}", "train.checkpoint_every=7", "train.deterministic=true")
    whole, part = (runs.new_folder(tmp_path / name) for name in ("whole", "part"))
    assert runs.train(whole, *words) == 0
    with runs.signalled(29):
        assert runs.train(part, *words) == 143
    assert runs.state(part)["rng"]["cuda"] is not None
    lost = Path(shutil.copytree(part, tmp_path / "lost", symlinks=True))
    assert runs.train(part, "resume=run") == 0
    assert runs.differences(runs.outcome(part), runs.outcome(whole)) == []
    with pytest.MonkeyPatch.context() as patch:
        load = checkpoint_file.load
        patch.setattr(
            checkpoint_file, "load", lambda path: {**(state := load(path)), "rng": {**state["rng"], "cuda": None}}
        )
        assert runs.train(lost, "resume=run") == 0
    assert runs.differences(runs.outcome(lost), runs.outcome(whole)) != []


@pytest.mark.parametrize("words", BROUGHT.values(), ids=BROUGHT)
def test_resume_is_exact_for_what_users_bring(tmp_path: Path, words: tuple[str, ...]) -> None:
    words = (*words, "train.checkpoint_every=7", "train.deterministic=true")
    whole, part = (runs.new_folder(tmp_path / name) for name in ("whole", "part"))
    assert runs.train(whole, *words) == 0
    with runs.signalled_after(29):
        assert runs.train(part, *words) == 143
    assert runs.train(part, "resume=run") == 0
    assert runs.differences(runs.outcome(part), runs.outcome(whole)) == []


def test_frozen_parts_stay(work: Path) -> None:
    start = dict(run_of(*runs.CNN).executor.forward.module.named_parameters())
    assert runs.train(work, *FROZEN) == 0
    trained = runs.state(work)["executor"]["model"]
    moved = {name for name, parameter in start.items() if not torch.equal(parameter.detach(), trained[name].cpu())}
    assert moved == {name for name in start if not name.startswith("blocks.0.")}


@pytest.mark.parametrize(("words", "kind"), [(IMAGES, "images"), (on_gpu(runs.GPT), "tensors")], ids=["images", "text"])
def test_samples_are_shown_and_training_goes_on_as_if_nobody_had_looked(
    tmp_path: Path, words: tuple[str, ...], kind: str
) -> None:
    outcomes = []
    for number in (0, 2):
        folder = runs.new_folder(tmp_path / str(number))
        assert runs.train(folder, *words, f"train.log_samples={number}", "train.deterministic=true") == 0
        outcomes.append(runs.outcome(folder))
        shown = EventAccumulator(str(folder / "run/tb")).Reload().Tags()[kind]
        assert len([tag for tag in shown if tag.startswith("samples/")]) == number
    assert runs.differences(*outcomes) == []


def test_exhausted_memory(work: Path, capsys: pytest.CaptureFixture[str], whole_memory: None) -> None:
    """Within a cap: the next run of the same process, without one, has the whole card again and ends well."""
    words = ("model=resnet50", "data=synthetic_images", "train.batch_size=64", "train.steps=2", "data.num_train=1000")
    words = ("device=cuda", "train.epochs=null", "data.num_evaluation=64", *words)
    assert runs.train(work, *words, "run.dir=run", "memory_cap_gib=1.5") == 6
    says = (
        "memory: exhausted with train.micro_batch=64 within memory_cap_gib=1.5; "
        "the cheapest cure: precision=bf16, or a larger memory_cap_gib"
    )
    assert capsys.readouterr().err == f"trainer4090: error: {says}\n"
    assert runs.result(work)["status"] == "oom" and runs.result(work)["peak_memory_gib"]["allocated"] > 0
    assert torch.cuda.memory_reserved() <= 1.5 * 2**30
    assert runs.train(work, *words, "run.dir=whole") == 0
