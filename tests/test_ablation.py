"""Ablations: which rows are asked for, how a row ends, what the files say, and that a wrong option is found out."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import python_path
from PIL import Image
from plugin_files import isolated
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer4090 import ablation
from trainer4090.__main__ import main
from trainer4090.ablation import chart, measure
from trainer4090.ablation.rows import rows_of
from trainer4090.composition import compose
from trainer4090.memory import MEMORY
from trainer4090.parse import parse

TINY = ("device=cpu", "run.dir=out", "model=cnn", "model.width=4", "model.dropout=0", "data.limit=640")
QUICK = ("ablate.repeats=2", "ablate.seconds=0", "ablate.steps=4", "ablate.warm_up=3", "train.log_every=2")
FILES = {"ablate.md", "ablate.csv", "ablate.png", "ablate.jsonl", "tb", "spec.yaml", "overrides.txt", "env.json"}
GOOD = "done('ok', 0)"
"""What a fake process runs unless it is told otherwise."""


def labels(*words: str) -> list[tuple[str, str]]:
    """Label of every row, and the options that it has."""
    ablated = rows_of(parse(compose(words).tree), lambda row: parse(compose([*words, *row]).tree))
    options = [
        [row.spec.precision.name, *(choice.name for choice in (*row.spec.memory, *row.spec.kernels))] for row in ablated
    ]
    return [(row.label, " ".join(each)) for row, each in zip(ablated, options, strict=True)]


BASE = ("baseline", "fp32 none eager")
ALL = "amp checkpoint fused"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["recipe=resnet50"],
            [BASE, ("+ amp", "amp none eager"), ("+ checkpoint", "amp checkpoint eager"), ("+ fused (all)", ALL),
             ("as given", "amp none fused")],
        ),
        (
            ["precision=bf16", "memory=checkpoint"],
            [BASE, ("+ bf16", "bf16 none eager"), ("+ checkpoint", "bf16 checkpoint eager"),
             ("+ fused (all)", "bf16 checkpoint fused"), ("as given", "bf16 checkpoint eager")],
        ),
        (
            ["ablate.axes=alone"],
            [BASE, ("amp alone", "amp none eager"), ("checkpoint alone", "fp32 checkpoint eager"),
             ("fused alone", "fp32 none fused"), ("all", ALL)],
        ),
        (
            ["ablate.axes=leave_one_out"],
            [BASE, ("all", ALL), ("all but amp", "fp32 checkpoint fused"), ("all but checkpoint", "amp none fused"),
             ("all but fused", "amp checkpoint eager")],
        ),
        (
            ["ablate.rows=['precision=fp32','precision=amp memory=checkpoint']"],
            [("precision=fp32", "fp32 none eager"), ("precision=amp memory=checkpoint", "amp checkpoint eager")],
        ),
    ],
    ids=["ladder", "ladder-of-own", "alone", "leave-one-out", "rows"],
)  # fmt: skip
def test_rows(words: list[str], expected: list[tuple[str, str]]) -> None:
    found = [row for row in labels(*words)]
    if words[-1] == "memory=checkpoint":  # it stands on the ladder already
        expected = expected[:-1]
    assert found == expected


def test_an_axis_is_compared_with_the_others_as_given() -> None:
    found = dict(labels("ablate.axes=memory", "precision=bf16"))
    assert next(iter(found)) == "memory=none"
    assert {label.partition("=")[2] for label in found} == set(MEMORY.names())
    assert {options.split()[0] for options in found.values()} == {"bf16"}
    both = labels("ablate.axes=[memory,kernels]")
    assert both[0] == ("memory=none kernels=eager", "fp32 none eager") and ("kernels=fused", "fp32 none fused") in both


@pytest.mark.parametrize(
    ("words", "key", "says"),
    [
        (["ablate.rows=[]"], "ablate.rows", "asks for no rows"),
        (["ablate.rows=['precision=fp32','memory=none']"], "ablate.rows", "measured as"),
        (["ablate.rows=['run.dir=x']"], "ablate.rows", "sets run.dir; it belongs to all rows"),
        (["ablate.rows=['train.steps=5']"], "ablate.rows", "ablate.steps"),
        (["ablate.rows=['precision=fp31']"], "precision", "did you mean fp32?"),
        (["ablate.rows=['train.sed=1']"], "train.sed", "did you mean train.seed or"),
        (["ablate.axes=memry"], "ablate.axes", "leave_one_out or precision or memory"),
        (["ablate.warm_up=1"], "ablate.warm_up", "at least 2"),
        (["train.micro_batch=5"], "train.micro_batch", "does not divide"),
        (["ablate.row=1"], "ablate.row", "did you mean ablate.rows"),
    ],
    ids=["no-rows", "twice", "foreign", "length", "option", "key", "axes", "warm-up", "baseline", "section"],
)
def test_what_is_refused_writes_nothing(
    words: list[str], key: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ablate", *words]) == 2
    errors = capsys.readouterr().err
    assert f"error: {key}: " in errors and says in errors
    assert not list(Path.cwd().iterdir())


def test_fields_of_an_option_that_a_row_leaves_are_left_with_it() -> None:
    words = ["memory=checkpoint", "memory.checkpoint.every=3"]
    made = ablation.make([*words, "device=cpu", "ablate.rows=['memory=none','train.seed=1']"])
    assert [row.spec.memory[0].name for row in made.rows] == ["none", "checkpoint"]
    assert made.rows[1].spec.memory[0].config.every == 3


def test_help_lists_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "ablate.repeats=3" in printed and "ablate.axes=ladder" in printed and "in turn: A B C" in printed


# Ends of processes, with processes that only pretend to train.


def fake(monkeypatch: pytest.MonkeyPatch, scripts: Mapping[str, str]) -> None:
    """Let the process of a row whose folder begins with a key run the script instead."""
    prelude = (
        "import json, os, signal, sys, time\n"
        "def done(status, code, **more):\n"
        "    json.dump({'status': status, 'exit_code': code, 'steps': 8, 'eval': {}, 'items_per_s': 100.0,\n"
        "        'step_time_ms': 10.0, 'first_losses': [2.0, 1.5, 1.25], 'first_times_ms': [1010.0, 10.0],\n"
        "        'active': {'products': {'float32': 6}}} | more, open('result.json', 'w'))\n"
        "    sys.exit(code)\n"
    )

    def command(folder: Path) -> list[str]:
        begun = [script for start, script in scripts.items() if folder.parent.name.startswith(start)]
        noisy = GOOD if "noisy" not in folder.parent.name else "done('ok', 0, first_losses=[2.0001, 1.5001, 1.2501])"
        return [sys.executable, "-c", f"{prelude}os.chdir({str(folder)!r})\n{(begun or [noisy])[0]}"]

    monkeypatch.setattr(measure, "command", command)


def table() -> dict[str, dict[str, str]]:
    """Rows of `ablate.csv` by label."""
    text = Path("out/ablate.csv").read_text(encoding="utf-8")
    return {row["label"]: row for row in csv.DictReader(io.StringIO(text))}


def rows_word(*rows: str) -> str:
    return f"ablate.rows={json.dumps(list(rows))}"


def test_no_end_of_a_row_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {
        "train.seed-1": "print('trainer4090: error: memory: exhausted; less', file=sys.stderr); done('oom', 6)",
        "train.seed-2": "os.kill(os.getpid(), signal.SIGKILL)",
        "train.seed-3": "time.sleep(60)",
        "train.seed-4": "raise ValueError('a defect')",
        "precision-bf16": "done('ok', 0, items_per_s=250.0, first_losses=[2.0, 1.6, 1.25])",
    }
    fake(monkeypatch, ends)
    seeds = [*(f"train.seed={seed}" for seed in range(5)), "precision=bf16"]
    words = ["ablate", *TINY, *QUICK, "ablate.timeout_s=0.6", rows_word(*seeds, "train.micro_batch=5")]
    assert main(words) == 0
    found = table()
    assert {label: row["status"] for label, row in found.items()} == dict(
        zip(seeds, ["ok", "oom", "killed", "timeout", "failed", "ok"], strict=True)
    ) | {"train.micro_batch=5": "refused"}
    assert "memory: exhausted" in found["train.seed=1"]["reason"]
    assert "SIGKILL" in found["train.seed=2"]["reason"] and "a defect" in found["train.seed=4"]["reason"]
    assert "does not divide" in found["train.micro_batch=5"]["reason"]
    assert (found["precision=bf16"]["speed_up"], found["train.seed=1"]["speed_up"]) == ("2.5", "")
    assert found["train.seed=0"]["compile_s"] == "1.0"
    assert (found["train.seed=0"]["parity"], found["precision=bf16"]["parity"]) == ("same", "DIFFERS")
    assert {path.name for path in Path("out").iterdir()} >= FILES
    markdown = Path("out/ablate.md").read_text(encoding="utf-8")
    assert markdown.count("\n| ") == 9 and "DIFFERS: 7e-02" in markdown
    assert "peak" not in markdown and "GPU" not in markdown and "MFU" not in markdown  # a CPU cannot tell


@pytest.mark.parametrize(
    ("script", "code"),
    [("done('oom', 6)", 6), ("os.kill(os.getpid(), signal.SIGKILL)", 137), ("time.sleep(60)", 1)],
    ids=["oom", "killed", "timeout"],
)
def test_a_failed_baseline_is_the_exit_code(script: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, {"baseline": script})
    found = main(["ablate", *TINY, *QUICK, "ablate.timeout_s=0.6"])
    assert found == code or (code == 1 and found != 0)
    rows = table()
    assert rows["+ amp"]["status"] == "ok" and rows["+ amp"]["speed_up"] == ""
    assert rows["+ amp"]["parity"] == "unknown"
    assert json.loads(Path("out/result.json").read_text())["exit_code"] == found


def test_rows_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "open('../../order', 'a').write(os.path.basename(os.path.dirname(os.getcwd()))[:3] + ' '); "
    fake(monkeypatch, {start: note + GOOD for start in ("train.seed-1", "train.seed-2", "losses")})
    assert main(["ablate", *TINY, *QUICK, rows_word("train.seed=1", "train.seed=2")]) == 0
    assert Path("out/order").read_text().split() == ["tra", "tra", "los", "los", "tra", "tra"]


def test_a_resume_goes_on_from_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = "open('../../count', 'a').write('x'); "
    fake(monkeypatch, {"train.seed-2": count + "sys.exit(1)", "train.seed-1": count + GOOD})
    words = ["ablate", *TINY, *QUICK, rows_word("train.seed=1", "train.seed=2")]
    assert main(words) == 0
    assert Path("out/count").read_text() == "xxx"
    assert main(words) == 9
    assert "not empty" in capsys.readouterr().err
    fake(monkeypatch, {"train.seed-": count + GOOD})
    assert main(["ablate", "run.dir=out", "resume=last"]) == 0
    assert Path("out/count").read_text() == "xxxxx"
    assert {row["status"] for row in table().values()} == {"ok"}
    assert main(["ablate", "run.dir=out", "resume=last"]) == 0
    assert main(["ablate", "resume=out", "ablate.repeats=3"]) == 0
    assert Path("out/count").read_text() == "x" * 7


@pytest.mark.parametrize(("wish", "code"), [("last", 7), ("nowhere", 7), ("auto", 0)])
def test_a_resume_of_nothing(wish: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, {})
    words = [word for word in TINY if wish == "auto" or not word.startswith("run.dir")]
    assert main(["ablate", *words, *QUICK, f"resume={wish}"]) == code


def test_the_picture_and_the_board(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, {"checkpoint": "done('oom', 6)"})
    assert main(["ablate", *TINY, *QUICK]) == 0
    with Image.open("out/ablate.png") as picture:
        picture.load()
        assert picture.size == chart.size_of(4) and len(picture.convert("RGB").getcolors(100_000) or ()) > 3
    board = EventAccumulator("out/tb", size_guidance={"scalars": 0})
    board.Reload()
    tags = board.Tags()
    assert set(tags["scalars"]) == {
        f"ablate/{name}" for name in ("items_per_s", "speed_up", "compile_s", "largest_loss_difference")
    }
    assert (tags["images"], tags["tensors"]) == (["ablate/chart"], ["ablate/table"])
    assert [event.step for event in board.Scalars("ablate/items_per_s")] == [0, 1, 3]


def test_an_ablation_is_a_job_of_a_sweep() -> None:
    """Verb and task are one: it may be swept, and its job is an ablation."""
    from trainer4090.sweeps.job import command

    assert "trainer4090.ablation" in command(Path("folder"), "ablate")
    assert "trainer4090.worker" in command(Path("folder"), "train")


# Processes that train.

PLUGIN = '''\
from dataclasses import dataclass

import torch

from trainer4090.models.networks.cnn import CNN
from trainer4090.precision import PRECISION, Precision
from trainer4090.extend import *


class Crooked(torch.overrides.TorchFunctionMode):
    """Half the gradient of every linear layer is lost, with the same outputs."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        if function is torch.nn.functional.linear:
            return (result + result.detach()) / 2
        return result


@dataclass(frozen=True)
class Config:
    pass


@PRECISION.register("crooked", Config)
def crooked(config, facts):
    """fp32 that trains something else."""
    return Precision(context=lambda device: Crooked())


class Hungry(CNN):
    def forward(self, inputs):
        if len(inputs) > 2:  # more than the trial of a plugin
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return super().forward(inputs)


@dataclass(frozen=True)
class HungryConfig:
    width: int = 4
    dropout: float = 0.0


@MODELS.register("hungry", HungryConfig)
def hungry(config, data):
    """A network that never fits."""
    return Model(Hungry((data.item_shape[0], 4, 8, 16), data.num_classes, 0.0), ())
'''


@pytest.fixture
def plugin() -> Iterator[str]:
    Path("mine.py").write_text(PLUGIN)
    with isolated():
        yield "plugin=./mine.py"


def test_a_table_of_real_rows(plugin: str) -> None:
    rows = ("precision=fp32", "precision=bf16 memory=checkpoint", "precision=crooked", "model=hungry")
    words = (*TINY, *QUICK[1:], "ablate.repeats=1", rows_word(*rows))
    assert main(["ablate", plugin, *words]) == 0
    plain, half, wrong, hungry = (table()[label] for label in rows)
    assert (hungry["status"], hungry["items_per_s"]) == ("oom", "") and "memory" in hungry["reason"]
    assert (plain["parity"], half["parity"], wrong["parity"]) == ("same", "same", "DIFFERS")
    assert all(float(row["items_per_s"]) > 0 for row in (plain, half, wrong))
    assert plain["peak_allocated_gib"] == plain["mfu"] == plain["gpu_utilization"] == ""
    assert "6 of 6 products in float32" in plain["active"] and "recomputed" not in plain["active"]
    assert "9 of 9 products in bfloat16, 3 operators recomputed" in half["active"]
    assert not any(row["doubts"] for row in (plain, half, wrong))


def test_a_signal_writes_what_is_there(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""}
    words = [*TINY, *QUICK, "ablate.seconds=1000", rows_word("precision=fp32", "train.micro_batch=5", "train.seed=1")]
    words[words.index("ablate.repeats=2")] = "ablate.repeats=1"
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer4090", "ablate", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("out/*/0/metrics.jsonl")) and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "ablate resume=out goes on" in errors
    assert [row["status"] for row in table().values()] == ["not measured"] * 3
    assert json.loads((tmp_path / "out/result.json").read_text())["status"] == "interrupted"


@pytest.mark.full
def test_a_sweep_of_ablations() -> None:
    words = ["-m", "task=ablate", *TINY, *QUICK, "train.seed=1,2", rows_word("precision=fp32", "precision=bf16")]
    words[words.index("run.dir=out")] = "run.dir=sweep"
    assert main(words) == 0
    for job in ("0", "1"):
        assert "same" in Path(f"sweep/{job}/ablate.csv").read_text()


@pytest.mark.full
def test_compiled_rows_show_what_they_run() -> None:
    words = ("kernels.fused.backend=aot_eager", "kernels=fused", "ablate.axes=leave_one_out", "ablate.repeats=1")
    assert main(["ablate", *TINY, *QUICK[1:], *words]) == 0
    rows = table()
    compiled = [label for label in rows if label not in ("baseline", "all but fused")]
    assert all("graphs compiled" in rows[label]["active"] for label in compiled)
    assert "compiled" not in rows["baseline"]["active"] + rows["all but fused"]["active"]
    assert {row["parity"] for row in rows.values()} == {"same"}
    assert not any(row["doubts"] for row in rows.values())


def test_the_folder_of_an_ablation_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, {})
    assert main(["ablate", *TINY, *QUICK, rows_word("train.seed=1")]) == 0
    result: dict[str, Any] = json.loads(Path("out/result.json").read_text())
    assert result["rows"] == [{"label": "train.seed=1", "status": "ok", "items_per_s": 100.0}]
    assert main(["evaluate", "run=out"]) == 7
