"""Worker processes: they end with the iterator and with the trainer, and their failures arrive as they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer4090.data import Source
from trainer4090.data.pipeline import workers
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.errors import DataError, MachineError, Problem, exit_code_of
from trainer4090.records import Batch


def batches_of(source: Source, num_workers: int, pin: bool = False) -> Iterator[tuple[Batch, Position]]:
    return training_batches(source, torch.Tensor.numel, 1, 5, Position(0, 0), num_workers, pin)


@dataclass(frozen=True)
class Sound:
    """Reading never fails."""

    def __len__(self) -> int:
        return 10

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        return {"pixels": indices, "pair": (indices, indices)}, indices

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        return indices

    def resident(self, device: torch.device) -> Source:
        return self


@dataclass(frozen=True)
class Faulty:
    """Reading fails at sample 6: with an error of ours, or by the death of the process."""

    deadly: bool = False

    def __len__(self) -> int:
        return 10

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        if (indices == 6).any():
            if self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            raise DataError(Problem("cat.jpg", "cut short", "download it again"))
        return indices, indices

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        return indices

    def resident(self, device: torch.device) -> Source:
        return self


def test_dropping_the_iterator_ends_its_workers():
    batches = batches_of(Sound(), num_workers=1)
    next(batches)
    assert len(multiprocessing.active_children()) == 1
    del batches
    assert multiprocessing.active_children() == []


FAILURES = [
    pytest.param(False, 0, DataError, "cat.jpg: cut short; download it again", id="here"),
    pytest.param(False, 1, DataError, "cat.jpg: cut short; download it again", id="in a worker"),
    pytest.param(True, 1, MachineError, "data.num_workers: .*lower data.num_workers", id="killed worker"),
]


@pytest.mark.parametrize(("deadly", "num_workers", "error_type", "text"), FAILURES)
def test_failures_arrive_as_they_are(deadly: bool, num_workers: int, error_type: type, text: str):
    with pytest.raises(error_type, match=f"^{text}") as caught:
        list(islice(batches_of(Faulty(deadly), num_workers), 10))
    assert len(caught.value.problems) == 1
    assert isinstance(caught.value.problems[0], Problem)
    assert exit_code_of(caught.value) == error_type.exit_code
    assert multiprocessing.active_children() == []


def test_no_worker_options_without_workers(monkeypatch: pytest.MonkeyPatch):
    """B48: prefetching, a context and pinning are never passed on for zero workers."""
    monkeypatch.setattr(workers, "DataLoader", lambda *_, **__: pytest.fail("a DataLoader for zero workers"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pytest.fail("pinned without being asked"))
    assert len(list(islice(batches_of(Sound(), num_workers=0), 3))) == 3


def test_pinning_keeps_the_structure(monkeypatch: pytest.MonkeyPatch):
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    batch, _ = next(batches_of(Sound(), num_workers=0, pin=True))
    assert len(pinned) == 4
    assert set(batch.inputs) == {"pixels", "pair"}
    assert type(batch.inputs["pair"]) is tuple


ORPHANS = """
import multiprocessing, time, torch
from trainer4090.data import DATA
from trainer4090.data.pipeline.loader import Position, training_batches
entry = DATA.get("digits")
source = entry.build(entry.config(), 0).train
batches = training_batches(source, torch.Tensor.numel, 8, 0, Position(0, 0), 2, False)
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(60)
"""


def running(process: int) -> bool:
    """Whether the process exists and has not ended; one that nobody waited for yet has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_die_with_a_killed_trainer():
    command = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as trainer:
        assert trainer.stdout is not None
        processes = [int(word) for word in trainer.stdout.readline().split()]
        assert len(processes) == 2 and all(map(running, processes))
        trainer.kill()
    deadline = time.monotonic() + 5
    while any(map(running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, processes))
