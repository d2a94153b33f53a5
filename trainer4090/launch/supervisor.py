"""Watches the processes of all ranks: one that ends too soon or hangs ends the run. Imports no torch."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from trainer4090.beats import Beat
from trainer4090.launch.report import Report

POLL_S = 0.05
GRACE_S = 10.0
"""Time that the others get to notice that a rank is gone, and to write what they have to."""


@dataclass(frozen=True)
class Limits:
    """How long a rank may show nothing."""

    stall_s: float
    """Inside updates."""
    slow_s: float
    """While it is built, evaluates, saves, or makes the first update of a batch size."""

    def of(self, beat: Beat) -> float:
        """For a rank that showed `beat` last."""
        return self.slow_s if beat.slow or beat.num_marks == 0 else self.stall_s


@dataclass(frozen=True)
class End:
    """How the process of a rank ended."""

    rank: int
    code: int
    """Exit code, negative for the signal that killed it."""
    at_s: float
    report: Report | None
    stalled: str | None = None
    """What it did last, of a rank that was killed because it hung."""
    killed: bool = False
    """It was ended because another rank had failed."""

    @property
    def well(self) -> bool:
        """Whether it did everything that a rank has to do."""
        return self.code == 0 and self.report is not None


class Watched(Protocol):
    """What the ranks show of themselves."""

    def beat(self, rank: int) -> Beat:
        """How far a rank is."""
        ...

    def report(self, rank: int) -> Report | None:
        """What it left behind."""
        ...


@final
class Supervisor:
    """The processes of all ranks, by rank."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], watched: Watched, limits: Limits) -> None:
        """Nothing is done before `wait`."""
        self._processes = processes
        self._watched = watched
        self._limits = limits
        now = time.monotonic()
        self._last = {rank: (Beat(0, 0, True), now) for rank in range(len(processes))}
        self._ends: dict[int, End] = {}
        self._hung: dict[int, str] = {}
        self._killed: set[int] = set()
        self.stopped_by: int | None = None
        """The newest signal that was passed on."""

    def pass_on(self, number: int) -> None:
        """Give a signal to every rank; a second one ends them at once."""
        self.stopped_by = number
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def wait(self) -> list[End]:
        """How every rank ended, when all have."""
        failed_at: float | None = None
        while len(self._ends) < len(self._processes):
            time.sleep(POLL_S)
            now = time.monotonic()
            self._reap(now)
            if failed_at is None and any(not end.well for end in self._ends.values()):
                failed_at = now
            if failed_at is None and self._kill_hung(now):
                failed_at = now
            if failed_at is not None and now - failed_at > GRACE_S:
                self._kill(self._alive())
        return [self._ends[rank] for rank in sorted(self._ends)]

    def kill_all(self) -> None:
        """Leave no process behind."""
        self._kill(self._alive())
        for process in self._processes:
            process.wait()

    def _alive(self) -> list[int]:
        return [rank for rank, process in enumerate(self._processes) if process.poll() is None]

    def _kill(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._killed.add(rank)
            self._processes[rank].kill()

    def _reap(self, now: float) -> None:
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is not None and rank not in self._ends:
                report = self._watched.report(rank)
                killed = rank in self._killed and rank not in self._hung
                self._ends[rank] = End(rank, code, now, report, self._hung.get(rank), killed)

    def _kill_hung(self, now: float) -> bool:
        """Kill the ranks that the others wait for, if they have shown nothing for too long."""
        alive = [rank for rank in self._alive() if rank not in self._ends]
        for rank in alive:
            beat = self._watched.beat(rank)
            if beat != self._last[rank][0]:
                self._last[rank] = (beat, now)
        behind = min((self._last[rank][0].progress for rank in alive), default=0)
        last = [rank for rank in alive if self._last[rank][0].progress == behind]
        silent = {rank: now - self._last[rank][1] for rank in last}
        if not last or any(silent[rank] <= self._limits.of(self._last[rank][0]) for rank in last):
            return False
        # Of several that are equally far, those that the kernel holds: the others wait for them.
        held = [rank for rank in last if _is_held(self._processes[rank].pid)] or last[:1]
        for rank in held:
            self._hung[rank] = f"showed nothing for {silent[rank]:.0f} s in update {self._last[rank][0].update}"
        self._kill(held)
        return True


def _is_held(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")
