"""`train`: compose, check, and train in this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer4090 import checkpoint_file, rank, resume, run_folder, timings, worker
from trainer4090.composition import compose
from trainer4090.disk import write_json, write_text
from trainer4090.finetune.start import require_start
from trainer4090.parse import load, parse, saved_tree
from trainer4090.plan import Plan
from trainer4090.ranks import place_in
from trainer4090.report.environment import environment
from trainer4090.signals import StopRequest
from trainer4090.spec import RunSpec, dump
from trainer4090.verbs.settling import settled

_WHEREABOUTS = ("resume", "run.dir", "run.name", "recipe", "data", "model")
"""Keys that decide where a run lies; its name comes from the last three unless it is given."""


@dataclass(frozen=True)
class _Start:
    """How a run begins."""

    spec: RunSpec
    overrides: list[str]
    """All words that made `spec`, those of earlier starts included."""
    folder: Path
    found: Path | None = None
    """Run folder or checkpoint file to go on from, None for a new run."""
    again: bool = False
    """A new run may take the folder of one that saved nothing."""


def run(words: Sequence[str]) -> int:
    """Train what `words` say, in a new folder or going on in an old one.

    Raises:
        TrainerError: the run cannot start, or did not end well; `result.json` says the same.
    """
    place = place_in(os.environ)
    if place.rank > 0:
        return rank.follow(place)
    start = _start(words)
    ready = worker.prepare(start.spec, place=place)
    if place.size > 1:
        rank.require_ranks(ready.plan, place)
    folder, stop = start.folder, StopRequest()
    if start.found is None:
        if start.spec.start.weights is not None:
            require_start(start.spec.start.weights)
        run_folder.claim(folder, start.again)
    with run_folder.locked(folder):
        stop.install()
        file = None if start.found is None else _file(start.found)
        end = None if file is None else _end_of(ready.plan, folder, file)
        if end is not None:
            print(f"nothing to do: {folder} {end}", flush=True)
            return 0
        if file is not None:
            print(f"resume: going on from {file}", flush=True)
        ready = replace(ready, plan=settled(ready.plan, words, folder))
        _save_start(ready.plan, folder, start.overrides)
        live = sys.stdout.isatty()
        if place.size > 1:
            result = rank.lead(place, ready, folder, file, stop, live)
        else:
            result = worker.run(ready, folder, file, stop, live)
    print(summary(result, folder), flush=True)
    return 0


def _start(words: Sequence[str]) -> _Start:
    resuming = any(word.startswith("resume=") for word in words)
    # Words of a resuming start may need those of the first one: `precision.floor=1` is no key unless precision=amp.
    first = [word for word in words if word.partition("=")[0] in _WHEREABOUTS] if resuming else words
    if resuming:
        resume.require_plugins(words)
    spec = parse(compose(first).tree)
    wish = spec.root.resume
    found = None if wish is None else run_folder.to_resume(wish, spec.run)
    if found is not None:
        folder = run_folder.folder_of(found)
        saved_tree(folder / "spec.yaml")  # before its options are looked for: they may be a plugin's
        overrides = resume.joined(resume.overrides_of(folder), words)
        spec = parse(compose(overrides).tree)
        resume.check(folder, spec)
        return _Start(spec, overrides, folder, found)
    if wish is not None:
        print("resume=auto: nothing to go on with, starting afresh", flush=True)
    spec = parse(compose(words).tree) if resuming else spec
    return _Start(spec, resume.joined((), words), run_folder.fresh(spec.run), again=wish is not None)


def _file(found: Path) -> Path:
    """The checkpoint file to go on from; chosen under the lock, else a run that still trains would save a newer one."""
    return checkpoint_file.verified(found) if found.suffix == ".pt" else checkpoint_file.newest_valid(found, print)


def _end_of(plan: Plan, folder: Path, file: Path) -> str | None:
    """How a run has ended from which nothing goes on, None when something does."""
    path, step = folder / "result.json", checkpoint_file.step_of(file)
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"status": "none"}
    if result["status"] != "ok":
        return None
    if step >= plan.horizon.total:
        return f"is finished at update {step}"
    before, criterion = load(folder / "spec.yaml").train, plan.evaluation.criterion
    as_before = (before.patience, before.least_improvement) == (criterion.patience, criterion.least_improvement)
    if "stopped_early" in result and step == result["steps"] and as_before:
        return f"stopped early at update {step}; a larger train.patience than {criterion.patience} goes on"
    return None


def _save_start(plan: Plan, folder: Path, overrides: Sequence[str]) -> None:
    run_folder.remove_remnants(folder)
    for name in ("result.json", timings.FILE):  # of an earlier start: this one has no result yet
        (folder / name).unlink(missing_ok=True)
    texts = {
        "spec.yaml": dump(plan.spec),
        "overrides.txt": resume.overrides_text(overrides),
        "plan.txt": f"{plan.describe()}\n",
    }
    if plan.evidence.timings:
        texts[timings.FILE] = timings.as_text(plan.evidence.timings)
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / "env.json", environment())
    run_folder.point_latest(folder)


def summary(result: dict[str, Any], folder: Path) -> str:
    """The last line of a run."""
    evaluation = ", ".join(f"eval {name} {value:.4f}" for name, value in result["eval"].items())
    speed = result.get("items_per_s")
    rate = "" if speed is None else f", {speed:,.0f} items/s"
    early = " (stopped early)" if "stopped_early" in result else ""
    return f"done: {result['steps']} updates{early}, {evaluation}{rate}; {folder}"
