"""Runs of two ranks from the command line: their files, their resume, and their end when one of them is lost."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs
from conftest import REPOSITORY, command
from equal_runs import assert_near
from runs import COMMON
from test_interrupt import wait_for

from trainer4090 import checkpoint_file, device
from trainer4090.card import Present
from trainer4090.errors import MachineError, Problem
from trainer4090.launch.report import Report
from trainer4090.launch.supervisor import End
from trainer4090.launch.verdict import of_ends

MLP = (*COMMON, "model=mlp", "model.hidden=[16]")
PAIR = ("parallelism=ddp", "cards=2")
LONG = ("train.steps=10000000", "schedule=constant", "train.eval_every=99999999", "train.checkpoint_every=99999999")


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, cwd = (
                path.read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                os.readlink(path.parent / "cwd"),
            )
        except OSError:
            continue
        if "trainer4090.rank" in words and Path(cwd) == folder:
            found.append(words)
    return found


def test_a_run_of_two_ranks_is_a_run(tmp_path: Path) -> None:
    done = command((*MLP, *PAIR, "train.clip_norm=1"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr and done.stdout.count("step 5/40") == 1
    assert not (tmp_path / "run/ranks").exists()
    lines, values = runs.metrics(tmp_path), runs.result(tmp_path)
    assert values["status"] == "ok" and values["items_per_s"] > 0
    alone = tmp_path / "alone"
    alone.mkdir()
    assert runs.train(alone, *MLP, "train.clip_norm=1") == 0
    for line, other in zip(lines, runs.metrics(alone), strict=True):
        assert line == pytest.approx(other, rel=1e-4), line["step"]
    assert values["eval"] == pytest.approx(runs.result(alone)["eval"], rel=1e-4)
    assert command(("evaluate", "run=run", "checkpoint=last"), tmp_path).returncode == 0


@pytest.mark.full
def test_a_resume_with_another_number_of_ranks(tmp_path: Path) -> None:
    words = (*MLP, "model.dropout=0.2", "optimizer=adamw", "schedule=constant", "ema.decay=0.9", "parallelism=ddp")
    words = (*words, "train.micro_batch=16")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    assert command((*words, "cards=2"), whole).returncode == 0
    starts = ((*words, "cards=2", "train.steps=10"), ("resume=run", "cards=1", "train.steps=25"))
    for start in (*starts, ("resume=run", "cards=2", "train.steps=40")):
        done = command(start, parts)
        assert done.returncode == 0, done.stderr
    curves = [
        {line["step"]: line["train/loss"] for line in runs.metrics(folder) if "train/loss" in line}
        for folder in (parts, whole)
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    one, other = runs.state(whole)["executor"], runs.state(parts)["executor"]
    for part in ("model", "average"):
        assert_near(one[part], other[part], 1e-5)
    assert other["update"] == one["update"]


def test_torchrun_makes_one_folder(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launcher, "-m", "trainer4090", *(word for word in MLP if not word.startswith("run.dir"))]
    done = subprocess.run(
        [*words, "parallelism=ddp", "train.steps=6"],
        cwd=tmp_path,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: 6 updates") == 1
    (folder,) = (tmp_path / "outputs").glob("*/*/spec.yaml")
    assert json.loads((folder.parent / "result.json").read_text())["status"] == "ok"


FAULTS = {
    "kill": "killed by SIGKILL",
    "raise": "TypeError: only integer tensors",
    "exit": "it ended with exit 0 before",
}
FAULTS |= {"hang": "showed nothing for", "stop": "showed nothing for"}
"""What is said of a rank to which this has happened."""
CASES = [*itertools.product(FAULTS, (0, 1), (1, 5, 9, 14))]
FAST = [("kill", 1, 9), ("raise", 0, 5)]


@pytest.mark.parametrize(
    ("fault", "rank", "update"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.full) for case in CASES if case not in FAST)],
)
def test_a_lost_rank_ends_the_run(tmp_path: Path, fault: str, rank: int, update: int) -> None:
    shutil.copy(REPOSITORY / "tests/rank_faults.py", tmp_path)
    harm = (f"optimizer.fault={fault}", f"optimizer.at_rank={rank}", f"optimizer.at_update={update}")
    words = (*MLP, *PAIR, "plugin=./rank_faults.py", "optimizer=faulty", *harm, "train.checkpoint_every=4")
    begun = time.monotonic()
    done = command((*words, "launch.stall_s=4", "launch.slow_s=25"), tmp_path)
    assert done.returncode == 8, done.stderr
    assert time.monotonic() - begun < 45 + 10  # and some seconds to start
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("trainer4090: ")]
    assert f"rank {rank} of 2 was lost" in line and FAULTS[fault] in line
    assert runs.result(tmp_path)["exit_code"] == 8 and not processes_of(tmp_path)
    files = checkpoint_file.files(tmp_path / "run")
    assert [checkpoint_file.step_of(file) for file in files] == [step for step in (12, 8, 4) if step < update][:2]
    assert not any(map(checkpoint_file.damage, files))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_stops_all_ranks_after_one_update(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "trainer4090", *MLP, *PAIR, *LONG]
    with subprocess.Popen(
        words, cwd=tmp_path, env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(tmp_path / "run/metrics.jsonl")
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    (step,) = [checkpoint_file.step_of(file) for file in checkpoint_file.files(tmp_path / "run")]
    says = f"interrupted: {number.name}: stopped after update {step}, which is saved; resume=run goes on"
    assert errors == f"trainer4090: {says}\n"
    assert runs.result(tmp_path)["status"] == "interrupted" and not processes_of(tmp_path)


@pytest.mark.full
def test_ranks_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "trainer4090", *MLP, *PAIR, *LONG]
    with subprocess.Popen(words, cwd=tmp_path, env=runs.environment(), stdout=subprocess.DEVNULL) as process:
        wait_for(tmp_path / "run/metrics.jsonl")
        assert len(processes_of(tmp_path)) == 2
        process.kill()
    until = time.monotonic() + 5
    while processes_of(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_an_error_of_ours_keeps_its_code_and_is_printed_once(tmp_path: Path) -> None:
    done = command((*MLP, *PAIR, "optimizer.lr=1e30", "train.log_every=1"), tmp_path)
    assert done.returncode == 5 and done.stderr.count("trainer4090: error:") == 1, done.stderr
    assert runs.result(tmp_path)["exit_code"] == 5


CONTACT = Report(1, 3.0, text="RuntimeError: Connection closed by peer", lost_contact=True)
OURS = Report(5, 2.0, (Problem("train/loss", "nan", "lower it"),))
VERDICTS = {
    "all well": ([End(0, 0, 1.0, Report(0, 1.0)), End(1, 0, 1.0, Report(0, 1.0))], None),
    "killed before it was noticed": ([End(0, 1, 3.0, CONTACT), End(1, -9, 3.1, None)], "rank 1 of 2 was lost: killed"),
    "the first of two": (
        [End(0, 1, 4.0, Report(1, 2.0, text="ValueError: a")), End(1, 1, 4.0, Report(1, 1.0, text="KeyError: b"))],
        "rank 1 of 2 was lost: KeyError: b",
    ),
    "ended for another": ([End(0, -9, 1.0, None, killed=True), End(1, 3, 2.0, None)], "rank 1 of 2 was lost: it ended"),
    "ours": ([End(0, 5, 2.0, OURS), End(1, 1, 1.0, CONTACT)], "train/loss: nan; lower it"),
}


@pytest.mark.parametrize(("ends", "said"), VERDICTS.values(), ids=VERDICTS)
def test_the_first_rank_that_failed_is_named(tmp_path: Path, ends: list[End], said: str | None) -> None:
    error = of_ends(ends, None, tmp_path)
    assert (error is None) if said is None else (error is not None and str(error).find(said) >= 0)


def test_more_cards_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Present(index, f"GPU-{index}", "NVIDIA GeForce RTX 4090", "8.9", 24564, 20000 + index) for index in (0, 1)]
    monkeypatch.setattr(device.cards, "present_gpus", lambda: gpus)
    with pytest.raises(MachineError, match="cards: 3, but there are 2 GPUs; use cards=2"):
        device.choose_one_of("auto", None, 3, 0)
    assert [device.choose_one_of("auto", None, 2, rank).uuid for rank in (0, 1)] == ["GPU-0", "GPU-1"]
    assert device.count("auto") == 2 and device.count("cpu") == 1
