"""kill -9 at any point: the same command goes on, every file loads, and the end is the end of an unkilled run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import VARIANTS, WORKERS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer4090 import checkpoint_file, disk, loop
from trainer4090.executors.local import LocalExecutor

SAVES = ("train.checkpoint_every=7", "resume=auto")
NUM_UPDATES = 40


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_call(owner: type | str, name: str, number: int, after: bool = False) -> None:
    """Let the process die in the call of that number: before the function does anything, or when it has done all."""
    holder = sys.modules[owner] if isinstance(owner, str) else owner  # a module cannot be sent to a process
    original, count = getattr(holder, name), 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == number and not after:
            die()
        value = original(*arguments, **named)
        if count == number:
            die()
        return value

    setattr(holder, name, deadly)


def in_update(number: int) -> None:
    """Die when the parameters have moved and nobody knows of it yet."""
    in_call(LocalExecutor, "step", number, after=True)


def in_evaluation(number: int) -> None:
    in_call(loop.__name__, "evaluate", number, after=True)


def while_starting(number: int) -> None:
    """Die before the file of that number is named in the new folder: spec, overrides, plan, environment."""
    in_call("os", "replace", number)


def in_metrics(number: int) -> None:
    """Die with half a line written."""
    write, count = disk.AppendFile.append, 0

    def torn(self: disk.AppendFile, content: bytes) -> None:
        nonlocal count
        count += content.startswith(b'{"step"')
        if count == number:
            write(self, content[: len(content) // 2])
            die()
        write(self, content)

    disk.AppendFile.append = torn  # type: ignore[method-assign]


def in_save(number: int, module: str, name: str, call: int) -> None:
    """Die in the save of that number, before a call that it makes of a module's function."""
    save, count = checkpoint_file.save, 0

    def deadly(*arguments: Any) -> Path:
        nonlocal count
        count += 1
        if count == number:
            in_call(module, name, call)
        return save(*arguments)

    checkpoint_file.save = deadly


def in_write(number: int, call: int) -> None:
    """Die in the save of that number with half of a block written and handed to the system."""
    save, write, count = checkpoint_file.save, checkpoint_file._Hashing.write, 0

    def torn(self: Any, block: bytes) -> int:
        nonlocal count
        count += 1
        if count == call:
            write(self, block[: len(block) // 2])
            self._file.flush()
            die()
        return write(self, block)

    def deadly(*arguments: Any) -> Path:
        nonlocal number
        number -= 1
        if number == 0:
            checkpoint_file._Hashing.write = torn  # type: ignore[method-assign]
        return save(*arguments)

    checkpoint_file.save = deadly


_draw = random.Random(4090)
_updates = [_draw.randrange(start, start + NUM_UPDATES // 8) + 1 for start in range(0, NUM_UPDATES, NUM_UPDATES // 8)]

OUTSIDE: dict[str, tuple[str, tuple[str, ...], Callable[[], None]]] = {
    "before the spec is there": ("cnn", (), partial(while_starting, 1)),
    "before the overrides are there": ("gpt", (), partial(while_starting, 2)),
    "in a line of metrics.jsonl": ("cnn", (), partial(in_metrics, 2)),
    "in a later line of metrics.jsonl": ("mlp-amp-ema", (), partial(in_metrics, 7)),
    "in an evaluation": ("gpt", (), partial(in_evaluation, 2)),
    f"in update {_updates[0]}": ("cnn", (), partial(in_update, _updates[0])),
    f"in update {_updates[1]}": ("gpt", (), partial(in_update, _updates[1])),
    f"in update {_updates[2]}": ("mlp-amp-ema", (), partial(in_update, _updates[2])),
    f"in update {_updates[3]} with workers": ("cnn", (WORKERS,), partial(in_update, _updates[3])),
    f"in update {_updates[4]}": ("mlp-amp-ema", (), partial(in_update, _updates[4])),
    f"in update {_updates[5]} with workers": ("gpt", (WORKERS,), partial(in_update, _updates[5])),
    f"in update {_updates[6]}": ("cnn", (), partial(in_update, _updates[6])),
}
INSIDE: dict[str, tuple[str, tuple[str, ...], Callable[[], None]]] = {
    "first block of the first file": ("cnn", (), partial(in_write, 1, 1)),
    "in the middle of a file": ("mlp-amp-ema", (), partial(in_write, 2, 40)),
    "in the middle of a later file": ("gpt", (WORKERS,), partial(in_write, 4, 60)),
    "before the digest is named": ("cnn", (), partial(in_save, 2, "os", "replace", 1)),
    "before the file is on the disk": ("gpt", (), partial(in_save, 3, "os", "fsync", 3)),
    "between digest and file": ("cnn", (WORKERS,), partial(in_save, 3, "os", "replace", 2)),
    "file named, last.json old": ("mlp-amp-ema", (), partial(in_save, 4, "os", "replace", 3)),
    "while old files are dropped": ("cnn", (), partial(in_save, 5, checkpoint_file.__name__, "files", 1)),
}
KILLS = {**OUTSIDE, **{f"{name} (save)": kill for name, kill in INSIDE.items()}}
FAST = ("before the spec is there", f"in update {_updates[1]}", "in the middle of a file (save)",
        "between digest and file (save)")  # fmt: skip


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Variant -> outcome of the run that nobody kills, without worker processes; each is made once."""
    made: dict[str, dict[str, Any]] = {}

    def outcome(variant: str) -> dict[str, Any]:
        if variant not in made:
            folder = runs.new_folder(tmp_path_factory.mktemp(variant) / "work")
            assert runs.run(folder, (*VARIANTS[variant], *SAVES)) == 0
            made[variant] = runs.outcome(folder)
        return made[variant]

    return outcome


def require_sound_files(folder: Path) -> None:
    for path in checkpoint_file.files(folder / "run"):
        assert checkpoint_file.damage(path) is None
        assert torch.load(path)["step"] == checkpoint_file.step_of(path)


@pytest.mark.parametrize("kill", [pytest.param(name, marks=() if name in FAST else pytest.mark.full) for name in KILLS])
def test_killed_run_ends_as_the_unkilled_one(unkilled: Any, tmp_path: Path, kill: str) -> None:
    variant, words, prepare = KILLS[kill]
    folder = runs.new_folder(tmp_path / "work")
    words = (*VARIANTS[variant], *SAVES, *words)
    assert runs.run(folder, words, prepare) == -signal.SIGKILL, runs.output(folder)
    require_sound_files(folder)
    assert runs.run(folder, words) == 0, runs.output(folder)
    require_sound_files(folder)
    assert runs.differences(runs.outcome(folder), unkilled(variant)) == []
    assert not list((folder / "run").rglob("*.tmp"))


def test_log_point_of_a_saved_update_survives(tmp_path: Path) -> None:
    """It is written one log point late, but before the save: a run that goes on from there never writes it."""
    folder = runs.new_folder(tmp_path / "work")
    words = (*VARIANTS["mlp-amp-ema"], *SAVES, "train.eval_every=99")
    assert runs.run(folder, words, partial(in_call, checkpoint_file.__name__, "save", 5, after=True)) == -signal.SIGKILL
    assert [line["step"] for line in runs.metrics(folder)][-1] == 35 == runs.state(folder)["step"]
    assert runs.run(folder, words) == 0
    assert [line["step"] for line in runs.metrics(folder)] == list(range(5, 45, 5))


def test_there_are_twenty_kills_eight_of_them_inside_a_save() -> None:
    assert (len(KILLS), len(INSIDE), len(FAST)) == (20, 8, 4) and set(FAST) < set(KILLS)
    updates = sorted(_updates)
    assert updates == _updates and updates[0] <= NUM_UPDATES // 8 and updates[6] > NUM_UPDATES * 3 // 4


@contextmanager
def by_hand(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The training as a user starts it; its output goes to `output.txt`."""
    command = [sys.executable, "-m", "trainer4090", *VARIANTS["cnn"], *SAVES, *words]
    with (
        (folder / "output.txt").open("wb") as output,
        subprocess.Popen(command, cwd=folder, env=runs.environment(), stdout=output, stderr=output) as process,
    ):
        yield process


@pytest.mark.full
@pytest.mark.parametrize("words", [(), (WORKERS,)], ids=["no workers", "workers"])
def test_killed_on_the_command_line_whenever_it_happens(unkilled: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    """By the clock instead of by the code, three times in one run: short after each log line."""
    folder = runs.new_folder(tmp_path / "work")
    draw = random.Random(1)
    for lines in (1, 4, 8):
        with by_hand(folder, *words) as process:
            while process.poll() is None and num_lines(folder) < lines:
                time.sleep(0.002)
            time.sleep(draw.random() / 50)
            process.kill()
        require_sound_files(folder)
    with by_hand(folder, *words) as process:
        assert process.wait(120) == 0, runs.output(folder)
    assert runs.differences(runs.outcome(folder), unkilled("cnn")) == []


def num_lines(folder: Path) -> int:
    path = folder / "run/metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_tensorboard_steps_stay_unique_and_increase(tmp_path: Path) -> None:
    """B39: killed at update 18, goes on from 14; every tag has each of its steps once, and each start one file."""
    folder = runs.new_folder(tmp_path / "work")
    words = (*VARIANTS["cnn"], *SAVES, "train.log_every=1", "train.steps=20")
    assert runs.run(folder, words, partial(in_update, 18)) == -signal.SIGKILL
    assert runs.run(folder, words) == 0
    board = EventAccumulator(str(folder / "run/tb"), size_guidance={"scalars": 0})
    board.Reload()
    steps = {tag: [event.step for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    assert steps["train/loss"] == list(range(1, 21)) and steps["eval/loss"] == [12, 20]
    assert all(numbers == sorted(set(numbers)) for numbers in steps.values())
    assert len(list((folder / "run/tb").iterdir())) == 2
    assert [line["step"] for line in runs.metrics(folder)] == list(range(1, 21))
