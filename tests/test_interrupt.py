"""A signal ends a run after the update and a completed save, and what is printed about it is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
from runs import COMMON, WORKERS

from trainer4090 import build, checkpoint_file, loop, run_folder
from trainer4090.data.pipeline import workers
from trainer4090.executors.local import LocalExecutor

MLP = (*COMMON, "model=mlp", "model.hidden=[16]", "schedule=constant")
LONG = (*MLP, "train.steps=10000000", "train.eval_every=99999999", "train.checkpoint_every=99999999")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return runs.new_folder(tmp_path / "work")


def steps_of(folder: Path) -> list[int]:
    return [checkpoint_file.step_of(path) for path in checkpoint_file.files(folder / "run")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_signal_finishes_the_update_and_saves(
    work: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    with runs.signalled(3, number=number):
        assert runs.train(work, *MLP) == code
    assert steps_of(work) == [3] and runs.state(work)["step"] == 3
    assert (runs.result(work)["status"], runs.result(work)["exit_code"]) == ("interrupted", code)
    says = f"interrupted: {number.name}: stopped after update 3, which is saved; resume=run goes on"
    assert capsys.readouterr().err == f"trainer4090: {says}\n"
    with runs.signalled(1, number=number):
        assert runs.train(work, "resume=run") == code
    assert steps_of(work)[0] == 4


def test_signal_in_the_last_update_is_no_interruption(work: Path) -> None:
    with runs.signalled(5):
        assert runs.train(work, *MLP, "train.steps=5") == 0
    assert runs.result(work)["status"] == "ok"


def test_signal_inside_an_evaluation_ends_after_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = loop.evaluate

    def interrupted(run: build.Run) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return evaluate(run)

    monkeypatch.setattr(loop, "evaluate", interrupted)
    assert runs.train(work, *MLP, "train.eval_every=4") == 143
    assert steps_of(work) == [4] and [line["step"] for line in runs.metrics(work)] == [4]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(run_folder, "point_latest"), (build, "build"), (LocalExecutor, "__init__"), (loop, "batches_from")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_signal_before_the_first_update(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], owner: Any, name: str
) -> None:
    original = getattr(owner, name)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, interrupted)
    assert runs.train(work, *MLP, "resume=auto") == 143
    says = "SIGTERM: stopped before an update was made; nothing is lost, the same command starts again"
    assert capsys.readouterr().err == f"trainer4090: interrupted: {says}\n"
    assert not checkpoint_file.files(work / "run")
    monkeypatch.undo()
    assert runs.train(work, *MLP, "resume=auto", "train.steps=6") == 0


def test_swallowed_signal_before_the_loop_still_ends_the_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's writer takes any error for its own; the request must outlive that."""
    from trainer4090.report import tensorboard

    monkeypatch.setattr(tensorboard, "layout", lambda tags: signal.raise_signal(signal.SIGTERM))
    assert runs.train(work, *MLP) == 143
    assert steps_of(work) == [] and runs.result(work)["steps"] == 0


def test_second_signal_ends_at_once(work: Path) -> None:
    assert runs.run(work, MLP, partial(twice_inside_update, 3)) == -signal.SIGTERM
    assert steps_of(work) == [] and not (work / "run/result.json").exists()


def twice_inside_update(update: int) -> None:
    HELD.enter_context(runs.signalled(update, update))


HELD = ExitStack()
"""Keeps a context open to the end of a process."""


def test_signal_while_waiting_for_worker_processes(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, count = workers._next, 0

    def interrupted(results: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGTERM)
        return take(results)

    monkeypatch.setattr(workers, "_next", interrupted)
    assert runs.train(work, *MLP, WORKERS) == 143
    assert steps_of(work) == [3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signal_to_the_whole_process_group(work: Path, number: signal.Signals) -> None:
    """A terminal's Ctrl-C, and what SLURM and systemd do: the worker processes are told as well."""
    command = [sys.executable, "-W", "error", "-m", "trainer4090", *LONG, WORKERS]
    with subprocess.Popen(
        command,
        cwd=work,
        env=runs.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        wait_for(work / "run/metrics.jsonl")
        os.killpg(process.pid, number)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, shown.decode()
    (step,) = steps_of(work)
    assert step == runs.result(work)["steps"] and f"stopped after update {step}, which is saved" in shown.decode()
    assert "Traceback" not in shown.decode()


def wait_for(path: Path, timeout_s: float = 60) -> None:
    """Until the file has a line."""
    until = time.monotonic() + timeout_s
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.02)
