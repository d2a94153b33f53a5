"""Keys that say `measure`: each of their values is timed in processes of its own, and the plan gets the fastest."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from trainer4090 import device, plan, rules, signals, timings
from trainer4090.ablation import kept
from trainer4090.ablation.measure import Measuring
from trainer4090.ablation.record import Measurement
from trainer4090.ablation.rows import Row, to_measure
from trainer4090.errors import (
    CheckpointFileError,
    ConfigError,
    DataError,
    MachineError,
    MemoryExhaustedError,
    NonFiniteError,
    Problem,
    TrainerError,
)
from trainer4090.plan import Plan
from trainer4090.spec import RunSpec
from trainer4090.sweeps.child import Child
from trainer4090.timings import Candidate, Timing, Value

KINDS = (ConfigError, DataError, MachineError, NonFiniteError, MemoryExhaustedError, CheckpointFileError)
"""Errors that a process may end with."""
TOO_SHORT = "it was too short for a speed"
FEWEST_TURNS = 2
"""Processes of each candidate: fewer have no spread."""


@dataclass(frozen=True)
class Bench:
    """Where and how candidates are timed."""

    plugins: Sequence[str]
    """Names on the command line, for every process."""
    child: Child
    """Told of signals by the caller."""
    notify: Callable[[str], None] = print


def settled(made: Plan, bench: Bench, recorded: Sequence[Timing] = ()) -> Plan:
    """The plan with a value in place of every `measure`; `made` itself when there is none, or nothing can be timed.

    `recorded`: by an earlier start of the run, which goes on with what it has.

    Raises:
        InterruptedRunError: a signal came; nothing is kept of what it ended.
        TrainerError: no value of a key can be run.
    """
    asked = timings.asked(made.spec, plan.facts_of(made))
    known = {each.key: dataclasses.replace(each, origin="run") for each in recorded if each.key in asked}
    base = timings.with_values(made.spec, {key: values[0] for key, values in asked.items()})
    base = timings.with_values(base, {key: each.value for key, each in known.items()})
    chosen = _here(made)
    if chosen is not None:
        base = dataclasses.replace(base, root=dataclasses.replace(base.root, device=device.word_of(chosen)))
    for key, values in asked.items():
        if chosen is None or key in known or len(values) == 1:
            continue
        file = kept.file_of(base, key, values, chosen)
        found = kept.load(file, key, bench.notify)
        if found is None:
            found = _measured(base, key, values, bench, made.card.device_name)
            kept.save(file, found, bench.notify)
        known[key] = found
        base = timings.with_values(base, {key: found.value})
    if not known:
        return made
    spec = timings.with_values(made.spec, {key: each.value for key, each in known.items()})
    evidence = dataclasses.replace(made.evidence, timings=tuple(known.values()))
    again = plan.make(spec, made.card, evidence)
    rules.check(again)
    return again


def _here(made: Plan) -> device.Choice | None:
    """The device that the run would get here, None for the plan of a card that is elsewhere."""
    try:
        return device.choose(made.spec.root.device, made.spec.card)
    except (ConfigError, MachineError):
        return None  # the plan says that nothing was timed


def _measured(base: RunSpec, key: str, values: Sequence[Value], bench: Bench, device_name: str) -> Timing:
    """The timing of `values`, in processes whose other keys are those of `base`."""
    rows = [
        Row(f"{key}={timings.shown(value)}", to_measure(timings.with_values(base, {key: value}))) for value in values
    ]
    with tempfile.TemporaryDirectory(prefix="trainer4090-") as folder:
        turns = max(base.ablate.repeats, FEWEST_TURNS)
        measuring = Measuring(Path(folder), rows, turns, bench.plugins, bench.child, compared=False)
        measuring.run(lambda: None)
    if bench.child.stopped_by is not None:
        raise signals.while_choosing(bench.child.stopped_by, key)
    processes = [measuring.of(row) for row in rows]
    candidates = tuple(candidate_of(value, own) for value, own in zip(values, processes, strict=True))
    taken = timings.decide(candidates)
    if taken is None:
        raise _error_of(key, processes[0][0])
    return Timing(key, taken.value, candidates, device_name, date.today().isoformat())


def candidate_of(value: Value, processes: Sequence[Measurement]) -> Candidate:
    """What the processes of a value have come to."""
    rates = tuple(each.result["items_per_s"] for each in processes if "items_per_s" in each.result)
    bad = next((each for each in processes if each.status != "ok"), None)
    if bad is not None:
        return Candidate(value, bad.status, bad.reason, rates)
    return Candidate(value, "ok", "", rates) if rates else Candidate(value, "failed", TOO_SHORT, ())


def _error_of(key: str, first: Measurement) -> TrainerError:
    """The error of a key of which no value can be run: that of its first process."""
    given = f"measure, and no value of it could be timed; of the first: {first.reason or TOO_SHORT}"
    kind = next((each for each in KINDS if each.exit_code == first.exit_code), TrainerError)
    return kind(Problem(key, given, "correct that, or give the key a value"))
