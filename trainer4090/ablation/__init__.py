"""An ablation: the rows that a spec asks for, each measured in processes of its own, as a table with its proofs."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer4090 import paths, resume, timings, worker
from trainer4090.ablation import board, chart, table
from trainer4090.ablation.line import Beside, Line, line_of
from trainer4090.ablation.measure import Measuring
from trainer4090.ablation.rows import Row, rows_of
from trainer4090.composition import compose, overrides, plugin_words
from trainer4090.disk import replacing, write_json, write_text
from trainer4090.errors import ConfigError, InterruptedRunError, Problem, TrainerError
from trainer4090.memory_cap import memory_cap
from trainer4090.parse import parse
from trainer4090.plan import Plan
from trainer4090.report.environment import environment
from trainer4090.signals import handed_to
from trainer4090.spec import RunSpec, dump

OWN_KEYS = ("run", "ablate", "task", "resume", "plugin", "debug")
"""Keys, or sections, of the whole ablation that no row may set."""
LENGTH_KEYS = ("train.steps", "train.epochs", "train.log_every", "train.eval_every", "train.checkpoint_every")
"""Keys that the ablation sets from its own."""
VERSIONS = ("torch", "trainer4090")


@dataclass(frozen=True)
class Ablation:
    """What is measured, and from which words."""

    spec: RunSpec
    words: list[str]
    """All overrides, without `resume`."""
    rows: list[Row]
    plans: dict[str, Plan]
    """Digest -> plan of a row that can be run here."""


def make(words: Sequence[str]) -> Ablation:
    """The ablation that overrides describe.

    Raises:
        TrainerError: a word or a row is wrong, or the first row cannot be run here; nothing is written.
    """
    words = resume.joined((), words)
    spec = parse(compose(words).tree)
    rows = rows_of(spec, lambda row: _composed(words, row))
    open_keys = dict.fromkeys(key for row in rows for key in timings.wanted(row.spec))
    if open_keys:
        remedy = "the rows of an ablation are what is measured: give it a value, or each value a row in ablate.rows"
        raise ConfigError(*(Problem(key, timings.MEASURE, remedy) for key in open_keys))
    plans = {}
    for row in rows:
        try:
            plans[row.digest] = worker.prepare(row.spec).plan
        except TrainerError:
            if row is rows[0]:
                raise
    return Ablation(spec, words, rows, plans)


def run(ablation: Ablation, folder: Path) -> int:
    """Measure in `folder`, claimed and locked by the caller, what is not measured there; the first row's exit code.

    Raises:
        InterruptedRunError: a signal came; what was measured is written, and a resume goes on.
    """
    measuring = Measuring(folder, ablation.rows, ablation.spec.ablate.repeats, plugin_words.split(ablation.words)[0])
    write_text(folder / "spec.yaml", dump(ablation.spec))
    write_text(folder / "overrides.txt", resume.overrides_text(ablation.words))
    described = environment()
    write_json(folder / "env.json", described)
    heading = _heading(ablation, described)
    with handed_to(measuring.interrupt):
        measuring.run(lambda: _write_texts(folder, _lines(ablation, measuring), heading))
    lines = _lines(ablation, measuring)
    _write_texts(folder, lines, heading)
    title, device = heading.title, heading.device
    picture = chart.png(lines, title, device)
    with replacing(folder / "ablate.png") as file:
        file.write(picture)
    board.write(folder / "tb", lines, table.as_markdown(lines, heading), picture, chart.size_of(len(lines)))
    code = _code(ablation, measuring)
    _write_result(folder, lines, code)
    print((folder / "ablate.md").read_text(encoding="utf-8"), flush=True)
    if measuring.stopped_by is not None:
        given = f"stopped with {sum(line.repeats > 0 for line in lines)} of {len(lines)} rows measured"
        name = signal.Signals(measuring.stopped_by).name
        raise InterruptedRunError(measuring.stopped_by, Problem(name, given, f"ablate resume={folder} goes on"))
    return code


def _lines(ablation: Ablation, measuring: Measuring) -> list[Line]:
    first, lines = measuring.of(ablation.rows[0]), []
    for row in ablation.rows:
        yardsticks = measuring.yardsticks[row.digest]
        beside = Beside(first, measuring.of(yardsticks.reference), measuring.of(yardsticks.twin))
        lines.append(line_of(row, ablation.plans.get(row.digest), measuring.of(row), beside))
    return lines


def _code(ablation: Ablation, measuring: Measuring) -> int:
    """0 unless the first row failed, which everything is compared with."""
    if measuring.stopped_by is not None:
        return 128 + measuring.stopped_by
    return next((each.exit_code or 1 for each in measuring.of(ablation.rows[0]) if each.status != "ok"), 0)


def _heading(ablation: Ablation, described: dict[str, Any]) -> table.Heading:
    plan, packages = ablation.plans[ablation.rows[0].digest], described["packages"]
    device = plan.card.device_name
    if plan.card.device == "cpu":
        device = f"{described['cpus']} cores of the CPU"
    cap = memory_cap(ablation.spec.root.memory_cap_gib, plan.card).gib  # of all rows; a row with another says so
    if cap is not None:
        device += f" capped at {cap:g} GiB"
    versions = ", ".join(f"{name} {packages[name]}" for name in VERSIONS if name in packages)
    typed = [word for word in ablation.words if word.partition("=")[0] not in ("task", "run.dir")]
    command = shlex.join(["python", "-m", "trainer4090", "ablate", *typed])
    title = f"Ablation of {ablation.spec.run.name}"
    return table.Heading(title, device, command, versions, ablation.spec.ablate.warm_up)


def _write_texts(folder: Path, lines: Sequence[Line], heading: table.Heading) -> None:
    write_text(folder / "ablate.md", table.as_markdown(lines, heading))
    write_text(folder / "ablate.csv", table.as_csv(lines))


def _write_result(folder: Path, lines: Sequence[Line], code: int) -> None:
    status = "ok" if code == 0 else "interrupted" if code in (130, 143) else "failed"
    rows = [{"label": line.label, "status": line.status, "items_per_s": line.items_per_s} for line in lines]
    write_json(folder / "result.json", {"status": status, "exit_code": code, "steps": 0, "eval": {}, "rows": rows})


def _composed(words: Sequence[str], row: Sequence[str]) -> RunSpec:
    """The spec of a row: its overrides on top of the command line's.

    Fields of an option that the row leaves, such as `memory.checkpoint.every` of `memory=none`, are left with it.

    Raises:
        ConfigError: with every problem of the row.
    """
    problems = list(_foreign(row))
    if problems:
        raise ConfigError(*problems)
    base = [word for word in words if not word.startswith("ablate.rows=")]
    groups = {word.partition("=")[0] for word in row} & set(paths.groups())
    try:
        return parse(compose(resume.joined(base, row)).tree)
    except ConfigError as error:
        wrong = {problem.key for problem in error.problems}
        own = {word.partition("=")[0] for word in row}
        if not all(key.partition(".")[0] in groups and key not in own for key in wrong):
            raise
        kept = [word for word in base if word.partition("=")[0] not in wrong]
        return parse(compose(resume.joined(kept, row)).tree)


def _foreign(row: Sequence[str]) -> list[Problem]:
    text, problems = " ".join(row), []
    for word in row:
        key = overrides.key_of(word)
        if key.partition(".")[0] in OWN_KEYS or key in LENGTH_KEYS:
            remedy = "it belongs to all rows: type it beside ablate.rows"
            if key in LENGTH_KEYS:
                remedy = "ablate.warm_up, ablate.steps and ablate.seconds say how long a row runs"
            problems.append(Problem("ablate.rows", f"{text!r} sets {key}", remedy))
    return problems
