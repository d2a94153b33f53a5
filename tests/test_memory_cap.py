"""`memory_cap_gib`: what the plan says, what torch is told, who hands it on, what an exhausted memory names."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from conftest import REPOSITORY, plan_of
from PIL import Image
from test_ablation import GOOD, QUICK, TINY, fake, rows_word

from trainer4090 import device, failure, parse, process, session, trained
from trainer4090.__main__ import main
from trainer4090.card import CPU, Card, load
from trainer4090.errors import ConfigError, MachineError, Problem

GIB = 2**30
RTX4090, H200 = (load(REPOSITORY / "conf" / "card" / f"{name}.yaml") for name in ("rtx4090", "h200"))
UNKNOWN = replace(RTX4090, memory_mib=None)
ON_CUDA = device.Choice(RTX4090, "GPU-1", "a test says so")
RUN = ("device=cpu", "run.dir=run", "train.epochs=null", "train.steps=1", "model=mlp", "model.hidden=[4]")
CAPPED = "memory_cap_gib=8"
NOTICE = "memory_cap_gib: asked 8 GiB, got no cap: it bounds what torch's allocator reserves on a GPU"


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    with patch.dict(os.environ):  # a run on CUDA sets torch's allocator for its whole process
        yield


SAYS = {
    "4090": (RTX4090, "23.3", "memory cap    23.3 of 23.98 GiB, as memory_cap_gib says"),
    "all of a 4090": (RTX4090, "23.98", "memory cap    23.98 of 23.98 GiB"),
    "a 4090 of an H200": (H200, "23.3", "memory cap    23.3 of 140.4 GiB"),
    "memory unknown": (UNKNOWN, "30", "memory cap    30 GiB, as"),
    "a CPU": (CPU, "8", f"notice        {NOTICE}"),
}


@pytest.mark.parametrize(("card", "cap", "text"), SAYS.values(), ids=SAYS)
def test_the_plan_says_so(card: Card, cap: str, text: str) -> None:
    described = plan_of(f"memory_cap_gib={cap}", card=card).describe()
    assert text in described and ("memory cap  " in described) == (card.device == "cuda")
    assert "cap" not in plan_of("memory_cap_gib=null", card=card).describe()


REFUSED = {
    "above": ("30", "30, but NVIDIA GeForce RTX 4090 has 23.98 GiB; give at most 23.98, or null for all of it"),
    "just above": ("23.99", "23.99, but NVIDIA GeForce RTX 4090 has 23.98 GiB"),
    "nothing": ("0", "0; allowed is a number above 0 and finite or null"),
    "endless": ("inf", "inf; allowed is a number above 0"),
    "word": ("auto", "'auto'; allowed is a number above 0"),
}


@pytest.mark.parametrize(("cap", "text"), REFUSED.values(), ids=REFUSED)
def test_a_cap_that_is_none(cap: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "card=rtx4090", f"memory_cap_gib={cap}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trainer4090: error: memory_cap_gib: {text}")


APPLIED = {
    "none": (None, 1.0),
    "half": (12.0, 0.5),
    "more than CUDA offers": (30.0, 1.0),
}


@pytest.mark.parametrize(("cap_gib", "share"), APPLIED.values(), ids=APPLIED)
def test_what_torch_is_told(cap_gib: float | None, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cap too: an earlier run of the same process may have set one."""
    told = []

    def properties(which: Any) -> SimpleNamespace:
        return SimpleNamespace(uuid=getattr(which, "index", which), total_memory=24 * GIB)

    fakes: dict[str, Any] = {
        "device_count": lambda: 2,
        "get_device_properties": properties,
        "set_device": lambda index: told.append(index),
        "set_per_process_memory_fraction": lambda *given: told.append(given),
    }
    for name, function in fakes.items():
        monkeypatch.setattr(torch.cuda, name, function)
    place = process.torch_device(ON_CUDA, cap_gib)
    assert told == [1, (share, torch.device("cuda", 1))] and place == torch.device("cuda", 1)


VERBS = {
    "train": (*RUN[1:], "device=cuda", "run.dir=other"),
    "evaluate": ("run=run", "device=cuda"),
    "predict": ("run=run", "input=white.png"),
    "generate": ("run=run",),
}


@pytest.mark.parametrize(("verb", "words"), VERBS.items(), ids=VERBS)
@pytest.mark.parametrize("cap", ["null", "8"])
def test_who_takes_a_device_hands_the_cap_on(
    verb: str, words: Sequence[str], cap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*RUN]) == 0
    Image.new("L", (8, 8), 255).save("white.png")
    asked = []

    def stopping(chosen: device.Choice, cap_gib: float | None) -> torch.device:
        asked.append(cap_gib)
        raise MachineError(Problem("device", "stopped", "go on"))

    monkeypatch.setattr(device, "choose", lambda *_: ON_CUDA)
    for module in (process, session, trained):
        monkeypatch.setattr(module, "torch_device", stopping)
    assert main([verb, *words, f"memory_cap_gib={cap}"]) == 4
    assert asked == [None if cap == "null" else 8.0]


@pytest.mark.parametrize("verb", ["predict", "generate"])
def test_a_cap_above_the_card_that_a_model_is_used_on(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN]) == 0
    Image.new("L", (8, 8), 255).save("white.png")
    monkeypatch.setattr(device, "choose", lambda *_: ON_CUDA)
    assert main([verb, *VERBS[verb], "memory_cap_gib=30"]) == 2
    assert "memory_cap_gib: 30, but NVIDIA GeForce RTX 4090 has 23.98 GiB" in capsys.readouterr().err


def test_a_cpu_says_that_it_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """And the run that goes on and the jobs of a sweep keep the cap of their words."""
    assert main([*RUN, CAPPED, "train.checkpoint_every=1", "schedule=constant"]) == 0
    assert main(["resume=last", "run.dir=run", "train.steps=2"]) == 0
    assert parse.load(Path("run/spec.yaml")).root.memory_cap_gib == 8
    Image.new("L", (8, 8), 255).save("white.png")
    assert main(["evaluate", "run=run", "device=cpu"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(NOTICE) == 3
    assert main(["predict", "run=run", "input=white.png", "device=cpu", CAPPED]) == 0
    assert capsys.readouterr().err.count(NOTICE) == 1
    assert main(["plan", "-m", "device=cpu", "run.dir=sweep", "memory_cap_gib=8,null"]) == 0
    specs = [parse.load(Path(f"sweep/{job}/spec.yaml")) for job in (0, 1)]
    assert [spec.root.memory_cap_gib for spec in specs] == [8, None]


BLAMED = {
    "cap": (RTX4090, True, "micro_batch=64 within memory_cap_gib=8", "precision=bf16, or a larger memory_cap_gib"),
    "while building": (RTX4090, False, "being built within memory_cap_gib=8", "model, or a larger memory_cap_gib"),
    "a CPU": (CPU, True, "micro_batch=64", "train.micro_batch=32"),
}


@pytest.mark.parametrize(("card", "training", "given", "cure"), BLAMED.values(), ids=BLAMED)
def test_exhausted_memory_names_the_cap(card: Card, training: bool, given: str, cure: str) -> None:
    (problem,) = failure.translated(MemoryError(), plan_of(CAPPED, card=card), training).problems  # type: ignore
    assert problem.given.endswith(given) and problem.remedy.endswith(cure)


def test_an_ablation_hands_it_to_its_rows_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may have another one, and may be refused for it."""
    monkeypatch.setattr(device, "choose", lambda *_: ON_CUDA)
    fake(monkeypatch, {"memory_cap_gib-4": f"assert 'memory_cap_gib: 4.0' in open('spec.yaml').read(); {GOOD}"})
    rows = rows_word("precision=fp32", "memory_cap_gib=4", "memory_cap_gib=30")
    assert main(["ablate", *TINY[1:], *QUICK, CAPPED, rows]) == 0
    assert "NVIDIA GeForce RTX 4090 capped at 8 GiB, " in Path("out/ablate.md").read_text(encoding="utf-8")
    table = csv.DictReader(io.StringIO(Path("out/ablate.csv").read_text(encoding="utf-8")))
    assert [row["status"] for row in table] == ["ok", "ok", "refused"]
    (saved,) = Path("out").glob("precision-fp32-*/0/spec.yaml")
    assert "\nmemory_cap_gib: 8.0\n" in saved.read_text(encoding="utf-8")


def test_every_problem_of_a_plan_comes_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        plan_of("memory_cap_gib=30", "cards=2", card=RTX4090)
    assert [problem.key for problem in error.value.problems] == ["cards", "memory_cap_gib"]
