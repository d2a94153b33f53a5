"""One run in this process: saved spec -> plan -> build -> train -> result.json. Knows nothing of Hydra.

`python -m trainer4090.worker FOLDER PARENT_PID [PLUGIN ...]` is what a sweep starts for each of its jobs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer4090 import device, launch, parse, plan, rules, run_folder, timings
from trainer4090.disk import append_text, write_json
from trainer4090.errors import exit_code_of, lines_of
from trainer4090.failure import translated
from trainer4090.parallelism import degrees
from trainer4090.plan import Plan
from trainer4090.plugin_modules import blamed
from trainer4090.plugins.loading import load
from trainer4090.process import end_with_parent
from trainer4090.ranks import FIRST, Place
from trainer4090.report.environment import environment
from trainer4090.session import Session
from trainer4090.signals import StopRequest
from trainer4090.spec import RunSpec
from trainer4090.timings import Timing


@dataclass(frozen=True)
class Ready:
    """A plan that passed every rule, and the device of this machine that it was made for."""

    plan: Plan
    device: device.Choice


def prepare(spec: RunSpec, measured: tuple[Timing, ...] = (), place: Place = FIRST) -> Ready:
    """Choose the device of a rank, make the plan, and check it. Imports no torch and writes nothing.

    `measured`: what settled keys of the spec.

    Raises:
        TrainerError: the spec cannot be run here.
    """
    cards = _num_cards(spec, place)
    num_ranks = degrees(spec.parallelism.name, spec.parallelism.config, cards).ranks
    chosen = device.choose_one_of(spec.root.device, spec.card, num_ranks, place.local_rank)
    made = plan.make(spec, chosen.card, replace(plan.gather(spec), timings=measured, num_cards=cards))
    rules.check(made)
    return Ready(made, chosen)


def _num_cards(spec: RunSpec, place: Place) -> int:
    if place.size > 1:
        return place.size
    return device.count(spec.root.device) if spec.root.cards == "auto" else spec.root.cards


def planned(spec: RunSpec) -> Plan:
    """The checked plan of `spec` on its card, which need not be in this machine.

    Raises:
        TrainerError: no such run is possible.
    """
    card = spec.card if spec.card is not None else device.choose(spec.root.device, None).card
    made = plan.make(spec, card, plan.gather(spec))
    rules.check(made)
    return made


def run(ready: Ready, folder: Path, resume_from: Path | None, stop: StopRequest, live: bool) -> dict[str, Any]:
    """Train in `folder` (claimed and locked by the caller) and return what `result.json` holds.

    A plan of several ranks trains in a process for each, any other in this one. Whatever ends the run, `result.json`
    and `train.log` say so before the error goes on to the caller.
    """
    if ready.plan.degrees.ranks > 1:
        return launch.run(ready.plan, folder, resume_from)
    return trained(Session(ready.plan, ready.device, folder, live), ready.plan, resume_from, stop)


def trained(session: Session, plan: Plan, resume_from: Path | None, stop: StopRequest) -> dict[str, Any]:
    """Train in this process; what `result.json` holds.

    Raises:
        BaseException: what ended the run, recorded in the run's folder.
    """
    try:
        session.train(resume_from, stop)
        session.close(finished=True)
    except BaseException as error:
        failure = translated(error, plan, session.training)
        if session.leads:
            _record(session, session.folder, failure, error)
        if failure is error:
            raise
        raise failure from error
    result = session.result(0, [])
    if session.leads:
        write_json(session.folder / "result.json", result)
    session.leave()
    return result


def _record(session: Session, folder: Path, failure: BaseException, error: BaseException) -> None:
    """Write what ended the run. A full disk or a lost device can hinder that too, but must not hide the first error."""

    def log() -> None:
        append_text(folder / "train.log", "".join(traceback.format_exception(error)))

    def write_result() -> None:
        write_json(folder / "result.json", session.result(exit_code_of(failure), lines_of(failure)))

    actions: tuple[Callable[[], None], ...] = (lambda: session.close(finished=False), log, write_result)
    for action in actions:
        try:
            action()
        except Exception as second:
            failure.add_note(f"and while that was recorded: {type(second).__name__}: {second}")


def main(folder: Path, parent: int, plugins: Sequence[str] = ()) -> int:
    """Run the saved spec of `folder`, and end with the process `parent`; the exit code.

    `plugins`: as the sweep's own command line gave them. The spec names them too, but no file of values runs code.
    """
    stop = StopRequest()
    try:
        stop.install()
        end_with_parent(parent)
        with run_folder.locked(folder):
            load(plugins)
            ready = prepare(parse.load(folder / "spec.yaml"), timings.of_folder(folder))
            write_json(folder / "env.json", environment())
            run(ready, folder, resume_from=None, stop=stop, live=False)
    except Exception as caught:
        error = blamed(caught)
        print("\n".join(lines_of(error)), file=sys.stderr)
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
