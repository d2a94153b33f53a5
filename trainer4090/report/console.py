"""What a person sees while training: a bar on a terminal, a line every few seconds elsewhere, and train.log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, TextIO, final

from trainer4090.disk import AppendFile

LINE_INTERVAL_S = 2.0
BAR_INTERVAL_S = 0.1
SHOWN = {
    "train/loss": "loss {:.4g}",
    "speed/items_per_s": "{:,.1f} items/s",
    "eval/loss": "eval loss {:.4g}",
    "eval/accuracy": "eval accuracy {:.4f}",
}
"""Tag -> how it reads. Other evaluations follow; the other tags are in metrics.jsonl and TensorBoard."""
OTHER_EVALUATION = "{} {:.4g}"


class Screen(Protocol):
    """Where text for a person goes."""

    def progress(self, step: int, state: str) -> None:
        """Shows how far training is."""
        ...

    def line(self, text: str) -> None:
        """Shows a line of progress, where lines are wanted."""
        ...

    def evaluation(self, text: str) -> None:
        """Shows an evaluation, unless lines tell it anyway."""
        ...

    def notice(self, text: str) -> None:
        """Shows a line that must not be missed."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was."""
        ...


@final
class PlainScreen:
    """Lines on a stream that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Writes to `stream`, which stays open."""
        self._stream = stream

    def progress(self, step: int, state: str) -> None:
        """Nothing: lines tell it."""

    def line(self, text: str) -> None:
        """Writes the line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    notice = line

    def evaluation(self, text: str) -> None:
        """Nothing: the next line tells it."""

    def close(self) -> None:
        """Nothing: there is no state."""


def describe(values: Mapping[str, float], remaining_s: float | None) -> str:
    """The values in `SHOWN`, all evaluations, and the time left, in words."""
    parts = [text.format(values[tag]) for tag, text in SHOWN.items() if tag in values]
    others = [tag for tag in values if tag.startswith("eval/") and tag not in SHOWN]
    parts += [OTHER_EVALUATION.format(tag.replace("/", " "), values[tag]) for tag in others]
    if remaining_s is not None:
        parts.append(f"{timedelta(seconds=round(remaining_s))} left")
    return ", ".join(parts)


@final
class Console:
    """Screen and train.log. A line comes at the first and the last log point and every two seconds between."""

    def __init__(
        self,
        log_path: Path,
        start_step: int,
        total_steps: int,
        live: bool,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens train.log for appending. The bar needs `live` and a terminal behind `stream` (default: stdout).

        Raises:
            RunFolderError: train.log cannot be written.
        """
        self._total_steps, self._clock = total_steps, clock
        self._pending: dict[str, float] = {}
        self._step = start_step
        self._first: tuple[int, float] | None = None
        self._line_due = self._bar_due = float("-inf")
        self._log = AppendFile(log_path)
        self._screen: Screen | None = _screen(stream or sys.stdout, start_step, total_steps, live)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Updates the screen; values of log points without a line are told with the next one."""
        now = self._clock()
        self._first = self._first or (step, now)
        self._step = max(self._step, step)
        self._pending.update(values)
        screen = self._screen
        evaluation = {tag: value for tag, value in values.items() if tag.startswith("eval/")}
        if screen is not None and evaluation:
            self._show(lambda: screen.evaluation(f"step {step}/{self._total_steps}, {describe(evaluation, None)}"))
        if screen is not None and now >= self._bar_due:
            self._bar_due = now + BAR_INTERVAL_S
            self._show(lambda: screen.progress(self._step, self._state(now, bar=True)))
        if now >= self._line_due:
            self._line_due = now + LINE_INTERVAL_S
            self._write_line(now)

    def notice(self, text: str) -> None:
        """Shows and logs `text` at once."""
        screen = self._screen
        if screen is not None:
            self._show(lambda: screen.notice(text))
        self._write_log(text)

    def close(self, final: Mapping[str, float]) -> None:
        """Tells the last log point, if no line has, and closes train.log."""
        screen = self._screen
        try:
            if self._pending:
                now = self._clock()
                if screen is not None:
                    self._show(lambda: screen.progress(self._step, self._state(now, bar=True)))
                self._write_line(now)
        finally:
            if screen is not None:
                self._show(screen.close)
            self._log.close()

    def _state(self, now: float, bar: bool = False) -> str:
        """What is pending, in words; a bar has no room for evaluations."""
        values = {tag: value for tag, value in self._pending.items() if not (bar and tag.startswith("eval/"))}
        remaining_s = None
        if self._first is not None and self._step > self._first[0]:
            first_step, first_time = self._first
            remaining_s = (now - first_time) / (self._step - first_step) * max(self._total_steps - self._step, 0)
        return describe(values, remaining_s)

    def _write_line(self, now: float) -> None:
        text = ", ".join(filter(None, (f"step {self._step}/{self._total_steps}", self._state(now))))
        self._pending.clear()
        screen = self._screen
        if screen is not None:
            self._show(lambda: screen.line(text))
        self._write_log(text)

    def _show(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:  # the terminal or the pipe behind stdout is gone; the run goes on
            self._screen = None
            self._write_log(f"nothing is shown any more: {type(error).__name__}: {error}")

    def _write_log(self, text: str) -> None:
        stamp = datetime.now().astimezone().isoformat(timespec="seconds")
        rows = "".join(f"{stamp} {row}\n" for row in text.splitlines())
        self._log.append(rows.encode("utf-8", errors="backslashreplace"))


def _screen(stream: TextIO, start_step: int, total_steps: int, live: bool) -> Screen:
    if not (live and stream.isatty()):
        return PlainScreen(stream)
    from trainer4090.report.bar import Bar

    return Bar(stream, start_step, total_steps)
