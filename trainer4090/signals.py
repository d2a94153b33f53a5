"""SIGINT and SIGTERM: the first one ends the run after a completed save, a second one at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import final

from trainer4090.errors import InterruptedRunError, Problem

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class StopRequest:
    """Remembers the first signal. While the loop is not yet running there is nothing to save: it raises at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._deferred = False

    def install(self) -> None:
        """Take over both signals for the rest of the process."""
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def defer(self) -> None:
        """From now on the loop looks at `signal_number` after every update."""
        self._deferred = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        for known in _SIGNALS:
            signal.signal(known, signal.SIG_DFL)
        self.signal_number = number
        if not self._deferred:
            raise before_an_update(number)


@contextmanager
def ending(given: str, remedy: str) -> Iterator[None]:
    """Let a signal raise inside the block, so that what is half done is cleaned up; outside everything is as before.

    Raises:
        InterruptedRunError: a signal came; it says `given` and `remedy`.
    """

    def receive(number: int, frame: FrameType | None) -> None:
        for known in _SIGNALS:
            signal.signal(known, signal.SIG_DFL)
        raise InterruptedRunError(number, Problem(_name(number), given, remedy))

    before = {number: signal.signal(number, receive) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handed_to(receive: Callable[[int], None]) -> Iterator[None]:
    """Give SIGINT and SIGTERM to a function for the length of the block."""

    def handler(number: int, frame: FrameType | None) -> None:
        receive(number)

    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def before_an_update(number: int) -> InterruptedRunError:
    """The error of a run that a signal ended before it made any progress."""
    given = "stopped before an update was made"
    return InterruptedRunError(number, Problem(_name(number), given, "nothing is lost, the same command starts again"))


def while_measuring(number: int) -> InterruptedRunError:
    """The error of a row of an ablation that a signal ended."""
    return InterruptedRunError(number, Problem(_name(number), "stopped while it was measured", "it is measured anew"))


def while_choosing(number: int, key: str) -> InterruptedRunError:
    """The error of a run that a signal ended while a key of its plan was measured."""
    given, remedy = f"stopped while {key} was measured", "nothing is kept, the same command starts again"
    return InterruptedRunError(number, Problem(_name(number), given, remedy))


def after_update(number: int, step: int, folder: object) -> InterruptedRunError:
    """The error of a run that a signal ended when update `step` was saved in `folder`."""
    given, remedy = f"stopped after update {step}, which is saved", f"resume={folder} goes on"
    return InterruptedRunError(number, Problem(_name(number), given, remedy))


def _name(number: int) -> str:
    return signal.Signals(number).name
