"""One rank of a run of several, in this process: started by `launch`, or by torchrun.

`python -m trainer4090.rank FOLDER PARENT_PID CHECKPOINT_FILE [PLUGIN ...]` is what `launch` starts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer4090 import launch, parse, timings, worker
from trainer4090.beats import Beats
from trainer4090.errors import ConfigError, Problem
from trainer4090.launch import report
from trainer4090.plan import Plan
from trainer4090.plugin_modules import blamed
from trainer4090.plugins.loading import load
from trainer4090.process import end_with_parent
from trainer4090.ranks import Place, Ranks, place_in
from trainer4090.session import Meet, Session
from trainer4090.signals import StopRequest
from trainer4090.worker import Ready

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

_ANNOUNCED = "trainer4090/run"
"""Key of the store under which rank 0 says where the run lies."""


def meeting(place: Place, store: Store | None = None, beats: Beats | None = None) -> Meet:
    """What opens the way to the other ranks, once the device is known. `store`: the open one, if there is one."""

    def meet(device: torch.device) -> Ranks:
        from trainer4090.executors.group import open_group, open_store

        return open_group(place, open_store(place) if store is None else store, device, beats)

    return meet


def require_ranks(plan: Plan, place: Place) -> None:
    """Raise unless the plan is for as many ranks as torchrun has started.

    Raises:
        ConfigError: it is for another number.
    """
    wanted = plan.spec.root.cards
    if plan.degrees.ranks == 1:
        given = f"{plan.spec.parallelism.name}, which trains in one process, and torchrun started {place.size}"
        raise ConfigError(Problem("parallelism", given, "use parallelism=ddp, or start one without torchrun"))
    if wanted not in ("auto", place.size):
        given = f"{wanted}, but torchrun started {place.size} processes"
        raise ConfigError(Problem("cards", given, f"leave it out, or use torchrun --nproc-per-node {wanted}"))


def lead(
    place: Place, ready: Ready, folder: Path, resume_from: Path | None, stop: StopRequest, live: bool
) -> dict[str, Any]:
    """Train as rank 0 of ranks that torchrun has started, and tell the others where; what `result.json` holds."""
    from trainer4090.executors.group import open_store

    store = open_store(place)
    words = [str(folder.resolve()), "" if resume_from is None else str(resume_from.resolve())]
    store.set(_announced(), json.dumps(words))
    session = Session(ready.plan, ready.device, folder, live, meet=meeting(place, store))
    return worker.trained(session, ready.plan, resume_from, stop)


def follow(place: Place) -> int:
    """Train as another rank that torchrun has started, where rank 0 says; the exit code.

    Raises:
        TrainerError: what ended the run for this rank.
    """
    from trainer4090.executors.group import open_store

    stop = StopRequest()
    stop.install()
    store = open_store(place)
    folder, file = json.loads(store.get(_announced()))
    ready = worker.prepare(parse.load(Path(folder) / "spec.yaml"), place=place)
    session = Session(ready.plan, ready.device, Path(folder), False, leads=False, meet=meeting(place, store))
    worker.trained(session, ready.plan, Path(file) if file else None, stop)
    return 0


def _announced() -> str:
    # torchrun starts all ranks again, with the same store, when one was lost and --max-restarts allows it.
    return f"{_ANNOUNCED}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def main(folder: Path, parent: int, resume_from: Path | None, plugins: Sequence[str]) -> int:
    """Train as the rank that the environment names, and end with the process `parent`; the exit code.

    Nothing is printed about an error: every rank leaves a report, and the parent says what the first one met.
    """
    place, own = place_in(os.environ), folder / launch.RANKS
    stop = StopRequest()
    stop.install()
    end_with_parent(parent, signal.SIGKILL)
    try:
        load(plugins)
        ready = worker.prepare(parse.load(folder / "spec.yaml"), timings.of_folder(folder), place)
        leads = place.rank == 0
        live = leads and sys.stdout.isatty()
        meet = meeting(place, beats=Beats(own / launch.BEATS))
        session = Session(ready.plan, ready.device, folder, live, leads, meet)
        worker.trained(session, ready.plan, resume_from, stop)
    except BaseException as caught:
        return report.write(report.path_of(own, place.rank), blamed(caught))
    return report.write(report.path_of(own, place.rank), None)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3] else None, sys.argv[4:])
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)  # taking torch down in order would wait for ranks that are gone
    sys.exit(code)
