"""`-m`: a sweep. Whatever can be known of its jobs beforehand is checked before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from trainer4090 import paths, run_folder
from trainer4090.composition import compose, overrides, plugin_words
from trainer4090.composition.diagnosis import word_of
from trainer4090.composition.hydra_compose import sweep_with
from trainer4090.errors import ConfigError, Problem, TrainerError
from trainer4090.parse import parse
from trainer4090.signals import handed_to
from trainer4090.spec import RunSpec
from trainer4090.sweeps import Sweep
from trainer4090.sweeps.job import Settle, plan_of
from trainer4090.sweeps.launcher import launching

_ENOUGH = 5
"""Problems after which no more jobs are read, and jobs read for more problems: a hundred take half a minute."""


def multirun(words: Sequence[str], settle: Settle) -> int:
    """Run every combination of the swept `words`; 0 when all jobs ended well, 1, or 130/143 after a signal.

    A job that cannot be read ends the sweep before it starts; one that a rule refuses becomes a failed row.

    Raises:
        ConfigError: a job has a typing error, or none can be run (its own error if all have the same); nothing was
            started or written.
    """
    swept = _read(words)
    specs = _specs(_jobs(swept))
    _refuse_if_hopeless(specs)
    folder = run_folder.fresh(specs[0].run, "sweep-")
    run_folder.claim(folder)
    run_folder.point_latest(folder)
    current = Sweep(folder.resolve(), settle, plugin_words.split(words)[0])
    with launching(current), handed_to(current.interrupt):
        sweep_with([*_deferred(swept), overrides.text_override("hydra.sweep.dir", str(folder.resolve()))])
    failed = sum(row.status != "ok" for row in current.rows)
    print(f"sweep: {len(current.rows)} jobs, {failed} failed; {folder / 'sweep.md'}")
    if failed and current.stopped_by is not None:
        return 128 + current.stopped_by
    return 1 if failed else 0


def _read(words: Sequence[str]) -> list[Override]:
    """The parsed words.

    Raises:
        ConfigError: a word is wrong by itself; those that are not are checked as a job, so that all problems are named.
    """
    sound, problems = overrides.read(words, sweeps=True)
    problems += [
        Problem("run.dir", f"is swept ({word_of(each)})", "it names the folder of the whole sweep: give one")
        for each in sound
        if each.get_key_element() == "run.dir" and each.is_sweep_override()
    ]
    if problems:
        wrong = {problem.key for problem in problems}
        rest = [each for each in sound if each.get_key_element() not in wrong]
        raise ConfigError(*problems, *_read_jobs(_jobs(rest)[:_ENOUGH])[1])
    return sound


def _jobs(swept: Sequence[Override]) -> list[list[str]]:
    """Overrides of every job, in the order in which Hydra's own sweeper runs them."""
    return [list(job) for batch in BasicSweeper.split_arguments(list(swept), max_batch_size=None) for job in batch]


def _specs(jobs: Sequence[Sequence[str]]) -> list[RunSpec]:
    """The spec of every job.

    Raises:
        ConfigError: with the problems of those that cannot be read.
    """
    specs, problems = _read_jobs(jobs)
    if problems:
        raise ConfigError(*problems)
    if not jobs:
        raise ConfigError(Problem("-m", "no jobs: a swept key has no values", "list some: key=a,b"))
    return specs


def _read_jobs(jobs: Sequence[Sequence[str]]) -> tuple[list[RunSpec], list[Problem]]:
    """Specs of the jobs that can be read, and the problems of the others, each once."""
    specs: list[RunSpec] = []
    problems: dict[Problem, None] = {}
    for job in jobs:
        try:
            specs.append(parse(compose(job).tree))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
        if len(problems) >= _ENOUGH:
            break
    wishes = dict.fromkeys(spec.root.resume for spec in specs if spec.root.resume is not None)
    remedy = "the jobs of a sweep start afresh: resume one by its folder, without -m"
    return specs, [*problems, *(Problem("resume", f"{wish} in a sweep", remedy) for wish in wishes)]


def _refuse_if_hopeless(specs: Sequence[RunSpec]) -> None:
    errors: list[TrainerError] = []
    for spec in specs:
        try:
            plan_of(spec)
            return
        except TrainerError as error:
            errors.append(error)
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else ConfigError
    raise kind(*dict.fromkeys(problem for error in errors for problem in error.problems))


def _deferred(swept: Sequence[Override]) -> list[str]:
    """Values of swept groups as choices of one, which Hydra leaves to the jobs; without the folder of the sweep.

    Hydra composes once without the swept words, and there `model.num_layers=2` would be checked against the default
    model although every job has another.
    """
    groups = {each.get_key_element() for each in swept if each.is_sweep_override()} & set(paths.groups())
    words = []
    for each in swept:
        key = each.get_key_element()
        if key == "run.dir":
            continue
        late = key.split(".")[0] in groups and not each.is_sweep_override()
        words.append(f"{key}=choice({overrides.key_value(each)})" if late else word_of(each))
    return words
