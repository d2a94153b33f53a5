"""Reading in worker processes, with the results and the order of reading here. Imports torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset

from trainer4090.data.pipeline.slots import Fetched, Sent, Slot, Slots, Writer
from trainer4090.errors import MachineError, Problem, TrainerError
from trainer4090.plugin_modules import Imports, blamed

PREFETCH_FACTOR = 2
"""Batches that each worker keeps ready."""
_HELD_BY_THE_READER = 3
"""The batch in use, the one before, and the one that is handed over."""
_PRELOADED = ("trainer4090.data.pipeline.loader", "torchvision.io")
"""Modules that take a worker a second or more to import."""

MOST_AUTOMATIC = 16
"""Processes that `auto` starts at most: each has about 300 MiB of its own."""


def num_processes(wanted: int | Literal["auto"]) -> int:
    """The number of worker processes that `data.num_workers` asks for; `auto` is one a core of this process."""
    return min(len(os.sched_getaffinity(0)), MOST_AUTOMATIC) if wanted == "auto" else wanted


class _Guarded(Dataset[Any]):
    """Calls `fetch`; an error of ours travels as a value, since torch would rebuild it from a traceback's text."""

    def __init__(self, fetch: Callable[[Any], Fetched], writer: Writer) -> None:
        self._imports = Imports()  # pickled before `fetch`, which may be made of classes that a plugin defines
        self._fetch = fetch
        self._writer = writer

    def __getitem__(self, task: tuple[Any, Slot | None]) -> Sent | TrainerError:
        part, slot = task
        try:
            return self._writer.fetched(lambda: self._fetch(part), slot)
        except Exception as error:
            known = blamed(error)
            if isinstance(known, TrainerError):
                return known
            raise


def fetch_in_workers(
    fetch: Callable[[Any], Fetched], slices: Iterator[Any], num_workers: int, pin: bool
) -> Generator[Fetched, None, None]:
    """`fetch(part)` for each of `slices`, in their order, by `num_workers` processes that end with the iterator.

    `fetch` is pickled once; its tensors move to shared memory and are not copied. What it returns comes in memory that
    is used for a later batch once no tensor lies in it any more.

    Raises:
        TrainerError: `fetch` raised one; it arrives as it was.
        MachineError: a worker process was killed.
    """
    context = multiprocessing.get_context("forkserver")  # fork would copy the locks of this process's threads
    # Imported once, not by each worker. What this process had no use for so far, most likely they have none for either.
    context.set_forkserver_preload([module for module in _PRELOADED if module in sys.modules])
    slots = Slots(num_workers * PREFETCH_FACTOR + _HELD_BY_THE_READER)
    results: Any = iter(
        DataLoader(
            _Guarded(fetch, slots.writer()),
            batch_size=None,
            sampler=((part, slots.take()) for part in slices),  # type: ignore[arg-type]  # any iterable serves
            num_workers=num_workers,
            collate_fn=_unchanged,
            worker_init_fn=_start_worker,
            pin_memory=pin,
            prefetch_factor=PREFETCH_FACTOR,
            multiprocessing_context=context,
            generator=torch.Generator(),  # the default one would advance and change dropout
        )
    )
    try:
        while (sent := _next(results)) is not None:
            if isinstance(sent, TrainerError):
                raise sent
            slots.grow(sent.wanted)
            yield slots.read(sent)
    finally:
        _shut_down(results)


def _shut_down(results: Any) -> None:
    # Private, but the public way is to drop the last reference, and the traceback of an error holds one.
    results._shutdown_workers()
    for process in results._workers:
        process.kill()  # one that still hangs in a read: it ignores the SIGTERM that torch gives it after 5 s


def _next(results: Iterator[Any]) -> Any:
    """The next result, None after the last."""
    try:
        return next(results, None)
    except (RuntimeError, OSError, EOFError) as error:
        # A death shows as torch's RuntimeError, or as a broken connection while a tensor was being handed over.
        raised_by_source = "in DataLoader worker process" in str(error)
        if raised_by_source or (isinstance(error, RuntimeError) and "DataLoader worker" not in str(error)):
            raise
        given = f"a worker process died ({' '.join(str(error).split()) or type(error).__name__})"
        remedy = "mostly for lack of memory, /dev/shm or open files: lower data.num_workers, or give 0 for none"
        raise MachineError(Problem("data.num_workers", given, remedy)) from error


def _unchanged(samples: Any) -> Any:
    return samples


def _start_worker(worker_id: int) -> None:
    """Leaves Ctrl-C and SIGTERM to the trainer, which finishes its update and saves; ends this process when it dies.

    A terminal, SLURM and systemd signal the whole group: a worker that obeys ends the run before it is saved.

    torch's own watchdog looks at the parent process, which is the fork server here, and that lives on while a worker
    does: after `kill -9` of the trainer all of them stayed (Python 3.11, torch 2.14).
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_trainer, daemon=True).start()


def _die_with_trainer() -> None:
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        trainer.join()
        os._exit(1)
