"""`-m`: a Hydra sweep. Every job that can be known beforehand is checked before the first one starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from trainer4090 import paths, run_folder, sweep_launcher, worker
from trainer4090.compose import CONFIG_NAME, compose, register
from trainer4090.errors import ConfigError, Problem, TrainerError
from trainer4090.parse import parse
from trainer4090.spec import RunSpec


def multirun(words: Sequence[str]) -> int:
    """Run every combination of the swept `words`; 0 when all jobs ended well, else 1.

    Raises:
        ConfigError: no job of the sweep can be run; nothing was started or written.
    """
    own = [word for word in words if not word.startswith(("run.dir=", "hydra."))]
    hydras = [word for word in words if word.startswith("hydra.")]
    spec = _checked(own)
    directory = next((word.partition("=")[2] for word in words if word.startswith("run.dir=")), None)
    folder = run_folder.fresh(spec.run if directory is None else type(spec.run)(spec.run.name, directory), "sweep-")
    run_folder.claim(folder)
    run_folder.point_latest(folder)
    _run_hydra([*_deferred(own), *hydras, f"hydra.sweep.dir={folder.resolve()}"])
    results = sweep_launcher.results_of(folder.resolve())
    failed = sum(result.status != "ok" for result in results)
    print(f"sweep: {len(results)} jobs, {failed} failed; {folder / 'sweep.md'}")
    return 1 if failed else 0


def _checked(words: Sequence[str]) -> RunSpec:
    """The spec of the first job that can be run."""
    jobs = expand(words)
    problems: dict[str, Problem] = {}
    good: RunSpec | None = None
    for job in jobs:
        try:
            spec = parse(compose(job).tree)
            worker.prepare(spec)
            good = good or spec
        except TrainerError as error:
            problems |= {str(problem): problem for problem in error.problems}
    if good is None:
        raise ConfigError(*problems.values())
    return good


def expand(words: Sequence[str]) -> list[list[str]]:
    """Overrides of every job, in the order in which Hydra's own sweeper runs them.

    Raises:
        ConfigError: an override cannot be read.
    """
    unreadable = [problem for word in words for problem in _unreadable(word)]
    if unreadable:
        raise ConfigError(*unreadable)
    parsed = OverridesParser.create().parse_overrides(list(words))
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]


def _unreadable(word: str) -> list[Problem]:
    try:
        OverridesParser.create().parse_override(word)
    except Exception as error:
        return [Problem(word.partition("=")[0], f"cannot read {word!r}", " ".join(str(error).split())[:120])]
    return []


def _deferred(words: Sequence[str]) -> list[str]:
    """Values of swept groups as choices of one, which Hydra leaves to the jobs.

    Hydra composes once without the swept words, and there `model.num_layers=2` would be checked against the default
    model although every job has another.
    """
    groups = set(paths.groups())
    parsed = OverridesParser.create().parse_overrides(list(words))
    swept = {override.get_key_element() for override in parsed if override.is_sweep_override()} & groups
    return [
        f"{override.key_or_group}=choice({word.partition('=')[2]})"
        if override.get_key_element().split(".")[0] in swept and not override.is_sweep_override()
        else word
        for word, override in zip(words, parsed, strict=True)
    ]


def _run_hydra(words: Sequence[str]) -> None:
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions through; Hydra would print them its own way and exit with 1

    @hydra.main(version_base="1.3", config_path=str(paths.CONF), config_name=CONFIG_NAME)
    def task(config: DictConfig) -> None:
        raise AssertionError("the launcher starts every job in a process of its own")

    arguments = sys.argv
    sys.argv = ["trainer4090", "--multirun", *words]
    try:
        task()
    finally:
        sys.argv = arguments
