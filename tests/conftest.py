"""Fixtures and the few functions that most tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from trainer4090 import loop, plan, rules
from trainer4090.build import Run, build
from trainer4090.card import CPU, Card
from trainer4090.composition import compose
from trainer4090.data.pipeline.loader import Position
from trainer4090.parse import parse
from trainer4090.plan import Plan

REPOSITORY = Path(__file__).resolve().parent.parent

TINY_MODELS = {
    "mlp": ("model=mlp", "model.hidden=[16,16]"),
    "cnn": ("model=cnn", "model.width=4"),
    "resnet": ("model=resnet18", "data=synthetic_images", "data.height=32", "data.width=32", "data.num_classes=10"),
    "gpt": (
        "model=gpt_tiny",
        "model.num_layers=2",
        "model.width=16",
        "model.num_heads=2",
        "data=text",
        "data.length=16",
    ),
    "char_lstm": ("model=char_lstm", "data=text", "data.length=8"),
}
"""Overrides that make each model small enough for a test."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    # Two test processes share two cores, and a sum over threads depends on their number.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan_of(*words: str, card: Card = CPU) -> Plan:
    """The checked plan of overrides on a card, the CPU unless given."""
    spec = parse(compose(words).tree)
    made = plan.make(spec, card, plan.gather(spec))
    rules.check(made)
    return made


def run_of(*words: str, dtype: torch.dtype = torch.float32) -> Run:
    """The built run of overrides on the CPU."""
    return build(plan_of(*words), torch.device("cpu"), lambda text: None, dtype)


def train_updates(run: Run, num_updates: int) -> list[float]:
    """Make updates from the start of the data; their losses."""
    losses = []
    batches = loop.batches_from(run, Position(0, 0))
    for _, (batch, _) in zip(range(num_updates), batches, strict=False):
        losses.append(float(run.executor.step(batch, observe=True).loss))
    return losses


def python_path() -> str:
    """`PYTHONPATH` of a child process: this repository, then the path that this process was given."""
    before = os.environ.get("PYTHONPATH")
    return f"{REPOSITORY}{os.pathsep}{before}" if before else str(REPOSITORY)


def command(
    words: Sequence[str], folder: Path, timeout_s: float = 120, gpu: bool = False
) -> subprocess.CompletedProcess[str]:
    """`python -m trainer4090 WORDS` in `folder`, as a user types it; it sees no GPU unless `gpu`."""
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **hidden, "PYTHONPATH": python_path()}
    return subprocess.run(
        [sys.executable, "-m", "trainer4090", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
