"""The process of a job: started from the `spec.yaml` in its folder, and its end in words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

END_S = 30.0
"""Time that a process gets to end by itself after SIGTERM, before it is killed."""


def worker(folder: Path) -> list[str]:
    """What starts a training process from the `spec.yaml` in `folder`."""
    return [sys.executable, "-m", "trainer4090.worker", str(folder), str(os.getpid())]


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Exit code, negative for the signal that killed it."""
    errors: str
    """What it wrote to stderr."""
    timed_out: bool = False

    @property
    def exit_code(self) -> int:
        """As a shell sees it: 128 + signal number for a killed process."""
        return 128 - self.code if self.code < 0 else self.code

    @property
    def reason(self) -> str:
        """Our own lines on stderr, or what comes nearest to them."""
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        lines = self.errors.splitlines()
        ours = [line.partition(": ")[2] for line in lines if line.startswith("trainer4090: ")]
        last = self.errors.strip().splitlines()[-1:] or [f"exit {self.code}"]
        return "; ".join(ours or last)


@final
class Child:
    """Runs one process after the other; the present one can be told to stop."""

    def __init__(self) -> None:
        self.stopped_by: int | None = None
        """Number of the signal after which no process is started any more."""
        self._process: subprocess.Popen[bytes] | None = None

    def interrupt(self, number: int) -> None:
        """Pass a signal on to the present process. A second one ends it at once."""
        self.stopped_by = number
        if self._process is not None:
            self._process.send_signal(number)

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run the command `words` to its end; `stderr.log` in `folder` keeps what it complained about."""
        errors, timed_out = folder / "stderr.log", False
        with errors.open("wb") as stderr:
            # A session of its own: Ctrl-C reaches the job once, through us.
            process = subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, env=environment
            )
            self._process = process
            if self.stopped_by is not None:  # the signal came before there was a process to pass it on to
                process.send_signal(self.stopped_by)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code, timed_out = _ended(process), True
            self._process = None
        text = errors.read_text(encoding="utf-8", errors="replace")
        if not text:
            errors.unlink()
        return Ended(code, text, timed_out)


def result_of(folder: Path) -> dict[str, Any]:
    """Content of `result.json`, empty when the process ended before it could write one."""
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Exit code of a process that is told to end, and killed when it does not."""
    process.terminate()
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
