"""One rank of a run of several, in this process: started by `launch`, or by torchrun.

`python -m trainer4090.rank FOLDER PARENT_PID CHECKPOINT_FILE [PLUGIN ...]` is what `launch` starts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer4090 import launch, parse, worker
from trainer4090.beats import Beats
from trainer4090.launch import report
from trainer4090.plugin_modules import blamed
from trainer4090.plugins.loading import load
from trainer4090.process import end_with_parent
from trainer4090.ranks import Place, Ranks, place_in
from trainer4090.session import Meet, Session
from trainer4090.signals import StopRequest

if TYPE_CHECKING:
    import torch


def meeting(place: Place, beats: Beats | None) -> Meet:
    """What opens the way to the other ranks, once the device is known."""

    def meet(device: torch.device) -> Ranks:
        from trainer4090.executors.group import open_group, open_store

        return open_group(place, open_store(place), device, beats)

    return meet


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
        ready = worker.prepare(parse.load(folder / "spec.yaml"), place)
        leads = place.rank == 0
        live = leads and sys.stdout.isatty()
        meet = meeting(place, Beats(own / launch.BEATS))
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
