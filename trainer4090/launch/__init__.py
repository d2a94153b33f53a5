"""Starts a process for every rank of a plan on this machine, and answers for how they end. Imports no torch."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer4090 import beats, signals
from trainer4090.beats import Beat, Beats
from trainer4090.disk import append_text, write_json
from trainer4090.errors import TrainerError, exit_code_of, lines_of
from trainer4090.launch import report, verdict
from trainer4090.launch.report import Report
from trainer4090.launch.supervisor import End, Limits, Supervisor
from trainer4090.plan import Plan
from trainer4090.ranks import STORE_SOCKET
from trainer4090.session import STATUS

RANKS = "ranks"
"""Folder in a run's folder with what ranks write besides the run's own files."""
BEATS = "beats"


def run(plan: Plan, folder: Path, resume_from: Path | None) -> dict[str, Any]:
    """Train `plan` in a process for every rank, from the `spec.yaml` in `folder`; what `result.json` holds.

    Raises:
        TrainerError: a rank did not end well; of several, what ended the first one. `result.json` says the same.
    """
    num_ranks, own = plan.degrees.ranks, folder / RANKS
    shutil.rmtree(own, ignore_errors=True)  # of an earlier start
    own.mkdir()
    beats.create(own / BEATS, num_ranks)
    limits = Limits(plan.spec.launch.stall_s, plan.spec.launch.slow_s)
    plugins = [plugin.name for plugin in plan.spec.root.plugin if plugin.distribution is None]
    words = [str(folder), str(os.getpid()), "" if resume_from is None else str(resume_from), *plugins]
    with started(own, num_ranks, words) as processes:
        supervisor = Supervisor(processes, _Files(own), limits)
        with signals.handed_to(supervisor.pass_on):
            try:
                ends = supervisor.wait()
            finally:
                supervisor.kill_all()
    error = verdict.of_ends(ends, supervisor.stopped_by, folder)
    if error is not None:
        _record(folder, ends, error)
        raise error
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if not any(path.stat().st_size for path in own.glob("*.log")):
        shutil.rmtree(own)
    return result


@dataclass(frozen=True)
class _Files:
    """What ranks show in their folder."""

    own: Path

    def beat(self, rank: int) -> Beat:
        """How far a rank is."""
        return Beats(self.own / BEATS).read(rank)

    def report(self, rank: int) -> Report | None:
        """What it left behind."""
        return report.read(report.path_of(self.own, rank))


@contextmanager
def started(own: Path, num_ranks: int, words: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of all ranks; rank 0 writes to our stdout, all else goes to a file each in the folder `own`."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=num_ranks + 1))
        processes = []
        for rank in range(num_ranks):
            log = stack.enter_context((own / f"rank-{rank}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "trainer4090.rank", *words],
                stdout=None if rank == 0 else log,
                stderr=log,
                env=_environment(rank, num_ranks, listening),
                pass_fds=[listening.fileno()] if rank == 0 else [],
                start_new_session=True,  # Ctrl-C reaches the ranks once, through us
            )
            processes.append(process)
        listening.close()  # rank 0 holds it now: when it dies, nobody waits at an open port
        yield processes


def _environment(rank: int, num_ranks: int, listening: socket.socket) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // num_ranks)
    defaults = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    ours = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listening.getsockname()[1]),
        STORE_SOCKET: str(listening.fileno()) if rank == 0 else "",
    }
    return {**defaults, **os.environ, **ours}


def _record(folder: Path, ends: Sequence[End], error: TrainerError) -> None:
    """Let `result.json` and `train.log` say what ended the run, whatever the ranks managed to write."""
    path = folder / "result.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"steps": 0, "eval": {}}
    code = exit_code_of(error)
    status = STATUS.get(code, "failed")
    write_json(path, {**result, "status": status, "exit_code": code, "problems": lines_of(error)})
    first = verdict.first_of([end for end in ends if not end.well])
    told = "" if first.report is None or first.rank == 0 else first.report.traceback
    if told:
        append_text(folder / "train.log", f"rank {first.rank}:\n{told}")
