"""Sweeps: every job is a process of its own, none ends the others, and the table is true at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import python_path

from trainer4090 import checkpoint_file
from trainer4090.__main__ import main
from trainer4090.sweeps import job as sweep_job
from trainer4090.sweeps.table import JobResult, as_markdown

TINY = ("train.steps=3", "train.epochs=null", "model=mlp", "model.hidden=[8]", "device=cpu", "run.dir=sweep")
LONG = ("train.steps=1000000", "train.eval_every=null", "train.checkpoint_every=null")
"""A job that would not end by itself."""
PATIENCE_S = 60
COMPLETE = {"spec.yaml", "overrides.txt", "plan.txt", "result.json"}


def rows(folder: Path = Path("sweep")) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sweep.jsonl").read_text(encoding="utf-8").splitlines()]


def statuses(folder: Path = Path("sweep")) -> list[str]:
    return [row["status"] for row in rows(folder)]


def until(holds: Callable[[], Any]) -> Any:
    """What `holds` returns once it is true."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.05)
    raise AssertionError("it never came true")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """Process ids of jobs that `pid` has started, from whichever of its threads."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in texts for word in text.split()]


def fake_jobs(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """Let job N run `scripts[N]` in its folder, with `done(status, code)` to write its result and end."""
    prelude = (
        "import json, os, signal, sys, time\n"
        "def done(status, code, **more):\n"
        "    json.dump({'status': status, 'exit_code': code, 'steps': 3, 'eval': {'loss': 0.5}} | more,"
        " open('result.json', 'w'))\n"
        "    sys.exit(code)\n"
    )

    def command(folder: Path, task: str) -> list[str]:
        code = f"{prelude}os.chdir({str(folder)!r})\n{scripts[int(folder.name)]}"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(sweep_job, "command", command)


def test_no_end_of_a_job_ends_the_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_jobs(
        monkeypatch,
        "done('ok', 0)",
        "print('trainer4090: error: data: bad label; look there', file=sys.stderr); done('failed', 3)",
        "os._exit(9)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "done('oom', 6)",
        "raise ValueError('a defect')",
        "done('ok', 0)",
    )
    assert main(["-m", "train.seed=range(7)", *TINY]) == 1
    expected = [
        ("ok", 0, ""),
        ("failed", 3, "error: data: bad label; look there"),
        ("failed", 9, "exit 9"),
        ("killed", 137, "killed by SIGKILL"),
        ("oom", 6, "exit 6"),
        ("failed", 1, "ValueError: a defect"),
        ("ok", 0, ""),
    ]
    found = rows()
    assert [(row["status"], row["exit_code"]) for row in found] == [row[:2] for row in expected]
    assert all(text in row["reason"] for row, (_, _, text) in zip(found, expected, strict=True))
    table = Path("sweep/sweep.md").read_text()
    assert table.endswith("7 jobs, 5 failed.\n") and table.count("\n| ") == 8
    printed = capsys.readouterr()
    assert "7 jobs, 5 failed" in printed.out
    # Each failure is told when it happens, with what made the job.
    assert len([line for line in printed.err.splitlines() if "job" in line and "train.seed=" in line]) == 5


def best(by: str, value: float, higher_is_better: bool) -> dict[str, Any]:
    evaluation = {"loss": 0.25} | {by.removeprefix("eval/"): value}
    return {
        "eval": {"loss": 0.5},
        "best": {"step": 2, "eval": evaluation, "by": by, "higher_is_better": higher_is_better},
    }


@pytest.mark.parametrize(
    ("status", "result", "expected"),
    [
        ("ok", best("eval/loss", 0.25, False), 0.5),
        ("ok", best("eval/accuracy", 0.75, True), -0.75),
        ("ok", best("eval/perplexity", 3.0, False), 3.0),
        ("ok", {"eval": {"loss": 0.5}}, None),
        ("failed", best("eval/accuracy", 0.75, True), None),
    ],
    ids=["last-loss", "best-of-higher", "best-of-lower", "never-a-value", "failed"],
)
def test_what_a_sweeper_minimises(status: str, result: dict[str, Any], expected: float | None) -> None:
    row = JobResult(0, ["a=1"], status, 0, "", result)
    assert row.objective == expected
    assert (" at 2 |" in as_markdown([row])) == ("best" in result)


def test_the_table_is_true_after_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = "import pathlib; path = pathlib.Path('../sweep.jsonl')\n"
    count = f"{seen}done('ok', 0, seen=len(path.read_text().splitlines()) if path.exists() else 0)"
    fake_jobs(monkeypatch, count, count, count)
    assert main(["-m", "train.seed=1,2,3", *TINY]) == 0
    assert [row["result"]["seen"] for row in rows()] == [0, 1, 2]


def test_refused_jobs_are_failed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jobs(monkeypatch, "", "done('ok', 0)", "")
    assert main(["-m", "train.micro_batch=5,8,7", *TINY]) == 1
    assert [(row["status"], row["exit_code"]) for row in rows()] == [("failed", 2), ("ok", 0), ("failed", 2)]
    assert "does not divide" in rows()[0]["reason"]
    for job in ("0", "1", "2"):
        assert {path.name for path in Path("sweep", job).iterdir()} >= COMPLETE - {"plan.txt"}
    assert json.loads(Path("sweep/0/result.json").read_text())["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train.micro_batch=5,7"], 2),
        (["data=digits", "data.path=missing1.npz,missing2.npz"], 3),
        (["precision=fp31,fp32"], 2),
        (["resume=last", "train.seed=1,2"], 2),
    ],
    ids=["rules", "data", "typing", "resume"],
)
def test_a_hopeless_sweep_writes_nothing(words: list[str], code: int) -> None:
    assert main(["-m", *TINY, *words]) == code
    assert not list(Path.cwd().iterdir())


def test_a_used_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sweep").mkdir()
    Path("sweep/mine").write_text("keep")
    assert main(["-m", *TINY, "train.seed=1,2"]) == 9
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in Path("sweep").iterdir()] == ["mine"]


def test_folders_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sweeps in one second do not meet, and a path may have any characters."""
    Path("a=b, c#李").mkdir()
    monkeypatch.chdir("a=b, c#李")
    words = [word for word in TINY if not word.startswith("run.dir")]
    for _ in range(2):
        assert main(["plan", "-m", "train.seed=1,2", *words]) == 0
    assert len(list(Path("outputs/digits-mlp").glob("sweep-*/1/spec.yaml"))) == 2
    assert Path("outputs/latest/sweep.md").is_file()


def test_planning_jobs_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_job, "command", lambda folder, task: ["false"])
    words = [word for word in TINY if not word.startswith("device")]
    assert main(["plan", "-m", "card=rtx4090,cpu", *words]) == 0
    assert statuses() == ["ok", "ok"]
    assert "NVIDIA GeForce RTX 4090" in Path("sweep/0/plan.txt").read_text()
    assert {path.name for path in Path("sweep/1").iterdir()} == COMPLETE


def test_verb_and_task_are_swept() -> None:
    words = ["-m", "task=plan", "precision=fp32,tf32", *TINY]
    assert main(words) == 0
    assert "tf32" in Path("sweep/1/plan.txt").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model=gpt,gpt_tiny", "data=text", "model.num_heads=2"], [("gpt", 2), ("gpt", 2)]),
        (["model=cnn,mlp", "model.dropout=0.25"], [("cnn", 0.25), ("mlp", 0.25)]),
    ],
    ids=["only-in-swept-options", "in-all"],
)
def test_shared_keys_are_checked_against_each_option(words: list[str], expected: list[tuple[str, float]]) -> None:
    assert main(["plan", "-m", *words, "run.dir=sweep"]) == 0
    key = words[-1].partition("=")[0].removeprefix("model.")
    for job, (name, value) in enumerate(expected):
        text = Path(f"sweep/{job}/spec.yaml").read_text()
        assert f"  name: {name}\n" in text and f"  {key}: {value}\n" in text


def test_a_key_of_one_option_only_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "model=cnn,mlp", "model.width=8", "device=cpu"]) == 2
    assert "model.width: unknown key of model=mlp" in capsys.readouterr().err
    assert not list(Path.cwd().iterdir())


def test_special_values_reach_the_jobs() -> None:
    words = ["plan", "-m", 'run.name=\'"a,b=c"\',"李 明"', "run.dir='x y'", "device=cpu"]
    assert main(words) == 0
    specs = [Path(f"x y/{job}/spec.yaml").read_text(encoding="utf-8") for job in (0, 1)]
    assert '"a,b=c"' in specs[0] and "李 明" in specs[1]


def test_evaluate_names_the_jobs_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", "train.seed=range(6)", *TINY]) == 0
    capsys.readouterr()
    for words in (["evaluate"], ["evaluate", "run=sweep"]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is a sweep" in line and "run=sweep/0 or run=sweep/1" in line and "of its 6 jobs" in line


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sequence[str]], subprocess.Popen[str]]]:
    """Starts a sweep in a process of its own, which is gone after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(words: Sequence[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "trainer4090", "-m", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def training(job: int) -> bool:
    """Whether the job is past its first log point."""
    metrics = Path(f"sweep/{job}/metrics.jsonl")
    return metrics.is_file() and metrics.stat().st_size > 0


def test_a_sweep_of_real_jobs(start: Callable[[Sequence[str]], subprocess.Popen[str]]) -> None:
    process = start(["precision=fp32,bf16", *TINY])
    printed, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (0, "")
    assert "2 jobs, 0 failed" in printed
    assert [(row["status"], row["result"]["steps"]) for row in rows()] == [("ok", 3), ("ok", 3)]
    for job in ("0", "1"):
        assert {path.name for path in Path("sweep", job).iterdir()} > COMPLETE


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_signal_saves_the_job_and_starts_no_other(
    number: signal.Signals, start: Callable[[Sequence[str]], subprocess.Popen[str]]
) -> None:
    process = start(["train.seed=1,2,3", *TINY, *LONG])
    until(lambda: training(0))
    # A terminal's Ctrl-C goes to the whole process group, and a second signal would end the job without a save.
    assert all(os.getpgid(job) != process.pid for job in children(process.pid))
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number, printed
    assert statuses() == ["interrupted"] * 3
    assert [row["exit_code"] for row in rows()] == [128 + number] * 3
    assert Path("sweep/sweep.md").read_text().endswith("3 jobs, 3 failed.\n")
    assert "which is saved" in rows()[0]["reason"]
    assert checkpoint_file.files(Path("sweep/0"))
    assert not Path("sweep/1").exists()


@pytest.mark.full
def test_a_signal_before_the_first_update(start: Callable[[Sequence[str]], subprocess.Popen[str]]) -> None:
    process = start(["train.seed=1,2", *TINY, *LONG])
    until(lambda: children(process.pid))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert statuses() == ["interrupted"] * 2


@pytest.mark.full
def test_a_killed_job_is_a_row(start: Callable[[Sequence[str]], subprocess.Popen[str]]) -> None:
    process = start(["train.steps=1000000,3", *(word for word in TINY if word != "train.steps=3")])
    until(lambda: training(0))
    (job,) = children(process.pid)
    os.kill(job, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert [(row["status"], row["exit_code"]) for row in rows()] == [("killed", 137), ("ok", 0)]


@pytest.mark.full
def test_jobs_die_with_the_sweep(start: Callable[[Sequence[str]], subprocess.Popen[str]]) -> None:
    process = start(["train.seed=1,2", *TINY, *LONG])
    until(lambda: training(0))
    (job,) = children(process.pid)
    process.kill()
    process.communicate()
    until(lambda: not alive(job))
    result = json.loads(Path("sweep/0/result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("interrupted", 143)
    assert checkpoint_file.files(Path("sweep/0"))
    assert not Path("sweep/1").exists()


@pytest.mark.full
def test_a_job_that_diverges_leaves_the_others_alone(
    start: Callable[[Sequence[str]], subprocess.Popen[str]],
) -> None:
    process = start(["optimizer.lr=0.1,1e38", "memory=none,checkpoint", *TINY])
    _, error = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 1
    assert [row["exit_code"] for row in rows()] == [0, 0, 5, 5]
    assert error.count("failed: ") == 2
