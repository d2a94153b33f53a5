"""Runs that cannot start or go on: one line, the right exit code, and nothing damaged."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from conftest import plan_of
from runs import CNN, COMMON, MLP_AMP

from trainer4090 import checkpoint_file, failure, loop
from trainer4090.__main__ import main
from trainer4090.card import CPU
from trainer4090.errors import exit_code_of
from trainer4090.executors.local import LocalExecutor

MLP = (*COMMON, "model=mlp", "model.hidden=[16]", "schedule=constant")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return runs.new_folder(tmp_path / "work")


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_folder_in_use_by_another_process(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with runs.signalled(5):
        assert runs.train(work, *MLP) == 143
    capsys.readouterr()
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    holder = "import sys; from pathlib import Path; from trainer4090 import run_folder\n"
    holder += "with run_folder.locked(Path('run')): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=runs.environment()
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        assert runs.train(work, "resume=run") == 9
        process.kill()
    assert only_line(capsys).startswith("trainer4090: error: run.dir: run is in use by another process; ")
    assert before == {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    assert runs.train(work, "resume=run") == 0  # the kernel dropped the lock with its process


@pytest.mark.parametrize("directory", ["/dev/null/x", "text.txt", "text.txt/below"], ids=str)
def test_folder_that_cannot_be_written(work: Path, capsys: pytest.CaptureFixture[str], directory: str) -> None:
    assert runs.train(work, *MLP, f"run.dir={directory}") == 9
    line = only_line(capsys)
    assert line.startswith(f"trainer4090: error: run.dir: {directory} cannot be written (")
    assert line.endswith("; give a folder that you may write")


def test_full_disk_ends_the_run_and_keeps_the_older_files(work: Path) -> None:
    assert runs.train(work, *CNN, "schedule=constant", "train.steps=20", "train.checkpoint_every=10") == 0
    files = checkpoint_file.files(work / "run")
    before = [path.read_bytes() for path in files]
    words = ("resume=run", "train.steps=40", "train.checkpoint_every=10")
    assert runs.run(work, words, partial(largest_file, 20_000)) == 9
    assert [path.read_bytes() for path in files] == before and checkpoint_file.files(work / "run") == files
    errors = [line for line in runs.output(work).splitlines() if "error" in line]
    assert len(errors) == 1 and "step-00000024.pt: File too large; free some space" in errors[0]
    assert (runs.result(work)["status"], runs.result(work)["exit_code"]) == ("failed", 9)
    assert runs.train(work, *words) == 0


def largest_file(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def test_result_of_a_failed_run_that_cannot_be_recorded(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second error while the first is recorded must not take its place."""

    def fail(*arguments: Any) -> Any:
        (work / "run/train.log").unlink()
        (work / "run/train.log").mkdir()
        raise failure.MemoryExhaustedError(failure.Problem("memory", "exhausted", "less"))

    monkeypatch.setattr(LocalExecutor, "step", fail)
    assert runs.train(work, *MLP) == 6 and runs.result(work)["status"] == "oom"


def test_model_too_large_for_the_memory(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.train(work, *COMMON, "model=mlp", "model.hidden=[1000000000000]") == 6
    says = "memory: exhausted while model=mlp and the data were being built; the cheapest cure: a smaller model"
    assert only_line(capsys) == f"trainer4090: error: {says}"
    assert runs.result(work)["status"] == "oom" and runs.result(work)["steps"] == 0
    assert "DefaultCPUAllocator" in (work / "run/train.log").read_text()


def test_update_too_large_for_the_memory(work: Path) -> None:
    """torch's own error: the limit is set once the run is built, below what the activations of one update take."""
    words = (*COMMON, "model=mlp", "model.hidden=[50000]", "train.batch_size=1024")
    assert runs.run(work, words, limit_memory_in_first_update) == 6
    errors = [line for line in runs.output(work).splitlines() if "error" in line]
    says = "memory: exhausted with train.micro_batch=1024; the cheapest cure: train.micro_batch=512"
    assert errors == [f"trainer4090: error: {says}"]
    assert (runs.result(work)["status"], runs.result(work)["exit_code"]) == ("oom", 6)


@pytest.mark.parametrize("words", [(), ("train.micro_batch=1",)], ids=runs.shown)
def test_evaluation_too_large_for_the_memory(
    work: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    assert runs.train(work, *MLP) == 0
    monkeypatch.setattr(loop, "evaluate", exhausted)
    monkeypatch.chdir(work)
    capsys.readouterr()
    assert main(["evaluate", "run=run", *words]) == 6
    remedy = "use device=cpu" if words else "use train.micro_batch=32, which is 64 now"
    assert only_line(capsys) == f"trainer4090: error: memory: exhausted; {remedy}"


def test_another_error_of_torch_is_none_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes"), failure.exhaustion(None, "use less"):
        raise RuntimeError("shapes differ")


def limit_memory_in_first_update() -> None:
    step = LocalExecutor.step

    def limited(self: LocalExecutor, batch: Any, observe: bool) -> Any:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 100 * 2**20,) * 2)
        return step(self, batch, observe)

    LocalExecutor.step = limited  # type: ignore[method-assign]


GPU = replace(CPU, name="gpu", device="cuda")
CURES: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "half the bytes first": ((), GPU, "precision=bf16"),
    "then smaller micro-batches": (("precision=bf16",), GPU, "train.micro_batch=32"),
    "what is captured stays": (("precision=bf16", "kernels=graph"), GPU, "kernels=eager"),
    "its neighbours stay": (("precision=amp", "kernels=[fused,graph,sdpa]"), GPU, "kernels=[fused,sdpa]"),
    "a divisor of the batch": (
        ("precision=bf16", "train.batch_size=60", "train.micro_batch=15"),
        GPU,
        "train.micro_batch=12",
    ),
    "BatchNorm needs two samples": (("train.batch_size=64", "train.micro_batch=2"), CPU, "memory=checkpoint"),
    "down to one without BatchNorm": (("model=mlp", "train.micro_batch=2"), CPU, "train.micro_batch=1"),
    "then recomputation": (("model=mlp", "train.micro_batch=1"), CPU, "memory=checkpoint"),
    "then nothing": (("model=mlp", "train.micro_batch=1", "memory=checkpoint"), CPU, "a smaller model"),
}


@pytest.mark.parametrize("case", CURES)
def test_cheapest_cure(case: str) -> None:
    words, card, cure = CURES[case]
    assert failure.cure(plan_of(*words, card=card)) == cure


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), 6),
        (RuntimeError("CUDA error: out of memory"), 6),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 6),
        (MemoryError(), 6),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 1),
        (ValueError("out of memory"), 1),
    ],
    ids=repr,
)
def test_what_counts_as_exhausted_memory(error: BaseException, code: int) -> None:
    assert exit_code_of(failure.translated(error, plan_of(), training=True)) == code


def finite(folder: Path) -> bool:
    model = runs.state(folder)["executor"]["model"]
    return all(bool(tensor.isfinite().all()) for tensor in model.values())


@pytest.mark.parametrize("every", [1, 2, 5], ids=str)
def test_diverged_training_saves_nothing_poisoned(work: Path, capsys: pytest.CaptureFixture[str], every: int) -> None:
    words = (*MLP, "optimizer.lr=1e38", "train.log_every=1", f"train.checkpoint_every={every}", "train.eval_every=99")
    assert runs.train(work, *MLP, "train.steps=1", "train.checkpoint_every=1") == 0
    assert runs.train(work, "resume=run", *words) == 5
    line = only_line(capsys)
    assert line.startswith("trainer4090: error: ") and "at update" in line and "lower optimizer.lr" in line
    assert finite(work) and runs.result(work)["status"] == "failed"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("blocks.0.convolution.weight", math.inf, 5),
        ("head.weight", math.nan, 5),
        ("blocks.1.norm.running_var", math.nan, 5),
        ("blocks.1.norm.running_var", math.inf, 143),  # a buffer may hold infinities, a mask for one
    ],
    ids=str,
)
def test_poisoned_state_is_not_saved(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: float, code: int
) -> None:
    """The loss of an update says nothing of the parameters that the update leaves."""
    step = LocalExecutor.step

    def poisoning(self: LocalExecutor, batch: Any, observe: bool) -> Any:
        output = step(self, batch, observe)
        self.forward.module.state_dict()[name].view(-1)[0] = value
        return output

    monkeypatch.setattr(LocalExecutor, "step", poisoning)
    with runs.signalled(1):
        assert runs.train(work, *CNN) == code
    assert (f"{name}: nan or infinite at update 1" in only_line(capsys)) == (code == 5)
    assert len(checkpoint_file.files(work / "run")) == (code != 5)


def test_loss_that_is_no_number_is_in_the_metrics(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.train(work, *MLP, "optimizer.lr=1e30", "train.log_every=1", "train.checkpoint_every=1") == 5
    last = json.loads((work / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["train/loss"] is None and last["non_finite"]["train/loss"] == "nan"
    assert f"train/loss: nan at update {last['step']}; lower optimizer.lr" in only_line(capsys)
    assert finite(work) and runs.state(work)["step"] < last["step"]


def test_loss_scale_ends_at_its_floor(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "optimizer.lr=1e30",
        "train.steps=90",
        "train.eval_every=999",
        "train.checkpoint_every=999",
        "ema.decay=null",
    )
    assert runs.train(work, *MLP_AMP, *words) == 5
    assert "train/loss: nan at update" in only_line(capsys)
    scales = [line["train/loss_scale"] for line in runs.metrics(work)]
    assert scales[0] > scales[-1] == 2.0**-14 and checkpoint_file.files(work / "run") == []


def test_evaluation_that_is_no_number_ends_the_run(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A diverged fp16 run may be over before the scale reaches its floor."""
    assert runs.train(work, *MLP_AMP, "optimizer.lr=1e30", "train.steps=12", "train.log_every=50") == 5
    assert "eval/loss: nan at update 12" in only_line(capsys)
    assert checkpoint_file.files(work / "run") == []


SHORT: dict[str, tuple[tuple[str, ...], list[int]]] = {
    "shorter than log_every": (("train.steps=3",), [3]),
    "one update": (("train.steps=1",), [1]),
    "everything at every step": (("train.steps=3", "train.log_every=1", "train.eval_every=1"), [1, 2, 3]),
    "evaluation beyond the end": (("train.steps=6", "train.eval_every=999"), [5, 6]),
}


@pytest.mark.parametrize("case", SHORT)
def test_short_runs_log_every_step_once(work: Path, case: str) -> None:
    words, steps = SHORT[case]
    assert runs.train(work, *MLP, *words, "train.checkpoint_every=1") == 0
    lines = runs.metrics(work)
    assert [line["step"] for line in lines] == steps
    assert "eval/loss" in lines[-1] and "train/loss" in lines[-1]
    assert runs.result(work)["items_per_s"] > 0


def test_default_run_without_workers_is_free_of_warnings(work: Path) -> None:
    """B48."""
    words = ("train.steps=2", "train.epochs=null", "data.num_workers=0")
    command = [sys.executable, "-W", "error", "-m", "trainer4090", *words]
    done = subprocess.run(command, cwd=work, env=runs.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
