"""Ranks for tests: processes that stay, joined by gloo, each of which calls the same function."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from conftest import REPOSITORY, plan_of, run_of
from equal_runs import state_of
from torch import distributed

from trainer4090 import loop
from trainer4090.build import Run, build
from trainer4090.data import Source
from trainer4090.data.pipeline.loader import Position, epoch_order
from trainer4090.executors.base import StepOutput
from trainer4090.executors.group import Group
from trainer4090.ranks import Place

IGNORED = -100
CPU = torch.device("cpu")


class Gang:
    """Calls functions of a test module on every rank at once."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(group, *arguments)` returns, by rank. A rank that raises fails the test."""
        for connection in self._connections:
            connection.send((function, arguments))
        answers = [connection.recv() if connection.poll(20) else "no answer" for connection in self._connections]
        errors = [answer for answer in answers if isinstance(answer, str)]
        assert not errors, "\n".join(errors)
        return [answer[0] for answer in answers]


@contextmanager
def gang(folder: Path, size: int = 2) -> Iterator[Gang]:
    """Ranks for the length of the block, forked from a process that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer4090.loop", "trainer4090.build", "trainer4090.composition"])
    pipes = [context.Pipe() for _ in range(size)]
    with patch.dict(os.environ, PYTHONPATH=str(REPOSITORY), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"):
        processes = [
            context.Process(target=_serve, args=(folder, rank, size, theirs)) for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
    try:
        yield Gang([ours for ours, _ in pipes])
    finally:
        for process in processes:
            process.kill()
            process.join()


def _serve(folder: Path, rank: int, size: int, connection: Connection) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    while True:
        function, arguments = connection.recv()
        try:
            connection.send((function(Group(Place(rank, rank, size), CPU, None), *arguments),))
        except BaseException:
            connection.send(traceback.format_exc())


class Masked:
    """A source that leaves out targets by their place in the batch: a micro-batch of two has none at all."""

    def __init__(self, source: Source, batch_size: int, seed: int) -> None:
        self._source = source
        self._batch_size = batch_size
        self._seed = seed

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        inputs, _ = self._source.fetch(indices, epoch)
        return inputs, self.targets(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        targets = self._source.targets(indices, epoch).clone()
        places = epoch_order(self._seed, epoch, len(self)).argsort()[indices] % self._batch_size
        for row, place in enumerate(places.tolist()):
            if targets.ndim == 1:
                targets[row] = IGNORED if place in (0, 1, 4) else targets[row]
            else:
                targets[row, place if place > 1 else 0 :] = IGNORED
        return targets

    def resident(self, device: torch.device) -> Source:
        return self


def trained(run: Run, num_updates: int, masked: bool = False, start: Position | None = None) -> dict[str, Any]:
    """Everything that updates leave behind, losses and norms included."""
    if masked:
        batching, seed = run.plan.batching, run.plan.spec.train.seed
        run = replace(run, data=replace(run.data, train=Masked(run.data.train, batching.batch_size, seed)))
    batches = loop.batches_from(run, start or Position(0, 0))
    outputs: list[StepOutput] = []
    position = Position(0, 0)
    for _ in range(num_updates):
        batch, position = next(batches)
        outputs.append(run.executor.step(batch, observe=True))
    return {
        "losses": torch.stack([output.loss for output in outputs]),
        "norms": torch.stack([norm for output in outputs if (norm := output.grad_norm) is not None]),
        "rates": [float(output.learning_rate) for output in outputs],
        "model": state_of(run),
        "executor": run.executor.state_dict(),
        "position": position,
    }


def on_ranks(
    group: Group, words: tuple[str, ...], num_updates: int, masked: bool, dtype: torch.dtype
) -> dict[str, Any]:
    """The updates of a rank."""
    plan = plan_of(*words, "parallelism=ddp", f"cards={group.size}")
    return trained(build(plan, CPU, lambda text: None, dtype, ranks=group), num_updates, masked)


def in_one_process(
    words: tuple[str, ...], num_updates: int, masked: bool, dtype: torch.dtype, parallelism: str = "single"
) -> dict[str, Any]:
    """The same updates in this process."""
    return trained(run_of(*words, f"parallelism={parallelism}", dtype=dtype), num_updates, masked)


tensors = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
