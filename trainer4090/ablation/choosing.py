"""Keys that say `measure`: each of their values is timed in processes of its own, and the plan gets the fastest."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from trainer4090 import device, plan, rules, signals, timings
from trainer4090.ablation.measure import Measuring
from trainer4090.ablation.record import Measurement
from trainer4090.ablation.rows import Row, to_measure
from trainer4090.errors import ConfigError, MachineError, Problem, TrainerError
from trainer4090.plan import Plan
from trainer4090.spec import RunSpec
from trainer4090.sweeps.child import Child
from trainer4090.timings import Candidate, Timing, Value

FEWEST_TURNS = 2
"""Processes of each candidate: fewer have no spread."""


@dataclass(frozen=True)
class Bench:
    """Where and how candidates are timed."""

    plugins: Sequence[str]
    """Names on the command line, for every process."""
    child: Child
    """Told of signals by the caller."""


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
    for key, values in asked.items():
        if key in known or len(values) == 1 or not _is_here(made):
            continue
        known[key] = _measured(base, key, values, bench, made.card.device_name)
        base = timings.with_values(base, {key: known[key].value})
    if not known:
        return made
    spec = timings.with_values(made.spec, {key: each.value for key, each in known.items()})
    evidence = dataclasses.replace(made.evidence, timings=tuple(known.values()))
    again = plan.make(spec, made.card, evidence)
    rules.check(again)
    return again


def _is_here(made: Plan) -> bool:
    """Whether the card of a plan, which may be elsewhere, is the one that a run would get here."""
    try:
        return device.choose(made.spec.root.device, made.spec.card).card == made.card
    except (ConfigError, MachineError):
        return False


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
    return Candidate(value, bad.status if bad else "ok", bad.reason if bad else "", rates)


def _error_of(key: str, first: Measurement) -> TrainerError:
    """The error of a key of which no value can be run: that of its first process."""
    given = f"measure, and no value of it could be timed; of the first: {first.reason or 'too short for a speed'}"
    kind = next((each for each in TrainerError.__subclasses__() if each.exit_code == first.exit_code), TrainerError)
    return kind(Problem(key, given, "correct that, or give the key a value"))
