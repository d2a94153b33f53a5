"""The cards of a machine, handed out to the jobs of a sweep: a job has its own, and sees no other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import final

from trainer4090.card import Present

VISIBLE = "CUDA_VISIBLE_DEVICES"
PROCESSOR = "cpu"
"""What a job without a card takes: there is one, so that such jobs run one after the other."""


@final
class Cards:
    """Places for jobs. Only the thread that takes them may wait; any thread may give them back."""

    def __init__(self, gpus: Sequence[Present]) -> None:
        """`gpus`: those that this process may use."""
        self._names = {gpu.uuid: gpu.device_name for gpu in sorted(gpus, key=lambda gpu: gpu.index)}
        self._free = {*self._names, PROCESSOR}
        self._changed = Condition()

    @property
    def most_jobs(self) -> int:
        """Jobs that can run at the same time."""
        return len(self._names) + 1

    def take(self, device: str, num_cards: int) -> tuple[str, ...]:
        """UUIDs for a job that asks for `device`, as soon as they are free; nothing for what cannot be had at all."""
        with self._changed:
            while (places := self._places(device, num_cards)) is None:
                self._changed.wait()
            self._free.difference_update(places)
        return places

    def give(self, places: Sequence[str]) -> None:
        """What `take` returned is free again."""
        with self._changed:
            self._free.update(places)
            self._changed.notify_all()

    def _places(self, device: str, num_cards: int) -> tuple[str, ...] | None:
        """None: not free yet."""
        order = list(self._names)
        if device == "cpu" or (device == "auto" and not order):
            named = [PROCESSOR]
        elif ":" in device:
            index = int(device.partition(":")[2])
            named = order[index : index + 1]
        else:
            if len(order) < num_cards:
                return ()  # the plan refuses it, and says so
            free = [uuid for uuid in order if uuid in self._free]
            return tuple(free[:num_cards]) if len(free) >= num_cards else None
        return tuple(named) if self._free.issuperset(named) else None

    def names(self, places: Sequence[str]) -> str:
        """Words for the console, empty where there is no choice: `cuda:1` is the second of them."""
        order = list(self._names)
        chosen = [f"cuda:{order.index(place)}" for place in places if place in self._names]
        return ", ".join(chosen) if len(order) > 1 else ""

    @contextmanager
    def only(self, device: str, places: Sequence[str]) -> Iterator[Mapping[str, str]]:
        """Let this process, and those that get the environment, see no other cards inside the block.

        A job that names its card by number counts those that are there, and one card alone needs no hiding.
        """
        before = os.environ.get(VISIBLE)
        hides = len(self._names) > 1 and ":" not in device and any(place in self._names for place in places)
        try:
            if hides:
                os.environ[VISIBLE] = ",".join(places)
            yield dict(os.environ)
        finally:
            if hides:
                os.environ.pop(VISIBLE)
                os.environ.update({} if before is None else {VISIBLE: before})
