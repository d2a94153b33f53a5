"""An interrupted and resumed run is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import COMMON, WORKERS

from trainer4090 import checkpoint_file

WORSE = (
    *COMMON,
    "model=mlp",
    "model.hidden=[16]",
    "schedule=multistep",
    "schedule.milestones=[1]",
    "schedule.gamma=20",
)
"""The second epoch's learning rate is so high that the best evaluation lies in the first."""
VARIANTS = {**runs.VARIANTS, "worse": WORSE}
SAVES = "train.checkpoint_every=7"
STOP = 29
"""Update of the interruption: in the middle of the second epoch, at no log point, no evaluation and no save."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Variant -> folder of the uninterrupted run, folder of the interrupted one; both are made once."""
    made: dict[str, tuple[Path, Path]] = {}

    def folders(variant: str) -> tuple[Path, Path]:
        if variant not in made:
            base = tmp_path_factory.mktemp(variant)
            whole, part = runs.new_folder(base / "whole"), runs.new_folder(base / "part")
            assert runs.train(whole, *VARIANTS[variant], SAVES) == 0
            with runs.signalled(STOP):
                assert runs.train(part, *VARIANTS[variant], SAVES) == 143
            made[variant] = whole, part
        return made[variant]

    return folders


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy", symlinks=True))


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("cnn", ()),
        ("mlp-amp-ema", ()),
        ("gpt", ()),
        ("cnn", (WORKERS,)),  # and the first part without worker processes
        ("gpt", (WORKERS,)),
        ("tokens", ()),
        ("tokens", (WORKERS,)),
        ("gpt", ("train.log_every=1",)),
    ],
    ids=runs.shown,
)
def test_resumed_run_equals_uninterrupted_one(trained: Any, tmp_path: Path, variant: str, words: tuple[str]) -> None:
    whole, part = trained(variant)
    folder = copied(part, tmp_path)
    assert runs.state(folder)["step"] == STOP
    assert runs.train(folder, "resume=last", "run.dir=run", *words) == 0
    ours, theirs = runs.outcome(folder), runs.outcome(whole)
    if "train.log_every=1" in words:
        ours.pop("metrics"), theirs.pop("metrics")
    assert runs.differences(ours, theirs) == []


def test_two_interruptions_are_as_none(trained: Any, tmp_path: Path) -> None:
    whole, part = trained("cnn")
    folder = copied(part, tmp_path)
    with runs.signalled(4):
        assert runs.train(folder, "resume=last", "run.dir=run", WORKERS) == 143
    assert runs.train(folder, "resume=last", "run.dir=run", "data.num_workers=0") == 0
    assert runs.differences(runs.outcome(folder), runs.outcome(whole)) == []


def zero(*path: str) -> Callable[[dict[str, Any]], None]:
    """Puts zeros, or what a new run has, in place of one piece of a state."""

    def change(state: dict[str, Any]) -> None:
        *parents, name = path
        for parent in parents:
            state = state[parent]
        state[name] = _zeroed(state[name])

    return change


def _zeroed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _zeroed(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return type(value)()


def without_buffers(state: dict[str, Any]) -> None:
    model = state["executor"]["model"]
    state["executor"]["model"] = {name: _zeroed(model[name]) if "running" in name else model[name] for name in model}


def without_optimizer(state: dict[str, Any]) -> None:
    state["executor"]["optimizer"]["state"] = {}


def other_rng(state: dict[str, Any]) -> None:
    state["rng"]["cpu"] = torch.Generator().manual_seed(7).get_state()


def initial_scale(state: dict[str, Any]) -> None:
    state["executor"]["update"]["scale"] = 16384.0


PIECES: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "step": ("cnn", zero("step")),
    "position.epoch": ("gpt", zero("position", "epoch")),
    "position.consumed": ("cnn", zero("position", "consumed")),
    "best": ("worse", lambda state: state.update(best=None)),
    "executor.model": ("cnn", zero("executor", "model")),
    "executor.model (buffers)": ("cnn", without_buffers),
    "executor.optimizer": ("cnn", without_optimizer),
    "executor.optimizer (adamw)": ("mlp-amp-ema", without_optimizer),
    "executor.update.applied": ("cnn", zero("executor", "update", "applied")),
    "executor.update.applied (amp)": ("mlp-amp-ema", zero("executor", "update", "applied")),
    "executor.update.scale": ("mlp-amp-ema", initial_scale),
    "executor.update.good_updates": ("mlp-amp-ema", zero("executor", "update", "good_updates")),
    "executor.average": ("mlp-amp-ema", lambda state: state["executor"].update(average=None)),
    "rng.cpu": ("cnn", other_rng),
}
"""Piece of a saved state -> a variant that needs it, and a change that loses it."""


@pytest.mark.parametrize("piece", PIECES)
def test_a_lost_piece_of_state_shows(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: str) -> None:
    variant, lose = PIECES[piece]
    whole, part = trained(variant)
    folder = copied(part, tmp_path)
    load = checkpoint_file.load

    def losing(path: Path) -> dict[str, Any]:
        state = load(path)
        lose(state)
        return state

    monkeypatch.setattr(checkpoint_file, "load", losing)
    assert runs.train(folder, "resume=last", "run.dir=run") == 0
    assert runs.differences(runs.outcome(folder), runs.outcome(whole)) != []


def test_every_piece_of_state_is_tried(trained: Any) -> None:
    elsewhere = {
        "format",  # test_checkpoint_file.py: another format is refused
        "waiting",  # test_criterion.py
        "spec",  # describes a file that lies alone; training reads the folder's spec.yaml
        "evaluation",  # test_killed_before_the_result_was_written
        "rng.cuda",  # test_gpu_run.py
        "data",  # describes the data: test_item_format.py; other classes or samples are refused: test_image_folder.py
    }
    saved = torch.load(checkpoint_file.files(trained("mlp-amp-ema")[1] / "run")[0])
    pieces = set()
    for name, value in saved.items():
        if name == "executor":
            pieces |= {f"executor.{part}" for part in value if part != "update"}
            pieces |= {f"executor.update.{part}" for part in value["update"]}
        else:
            pieces |= {f"{name}.{part}" for part in value} if name in ("position", "rng") else {name}
    assert pieces == {piece.split(" (")[0] for piece in PIECES} | elsewhere


def test_killed_before_the_result_was_written(trained: Any, tmp_path: Path) -> None:
    whole, _ = trained("cnn")
    folder = copied(whole, tmp_path)
    expected = runs.outcome(folder)
    (folder / "run/result.json").unlink()
    assert runs.train(folder, "resume=last", "run.dir=run") == 0
    assert runs.differences(runs.outcome(folder), expected) == []


def test_finished_run_is_left_alone(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, _ = trained("cnn")
    folder = copied(whole, tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert runs.train(folder, "resume=last", "run.dir=run") == 0
    assert capsys.readouterr().out == "nothing to do: run is finished at update 40\n"
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
