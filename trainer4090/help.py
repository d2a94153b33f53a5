"""The text of `--help`, made from the verbs and the option files that are there. Imports neither Hydra nor torch."""

from __future__ import annotations

import itertools

from trainer4090 import paths
from trainer4090.schema import describe, field_types
from trainer4090.verbs import VERBS, Verb

_KEYS = {
    "train.steps / train.epochs": "length; give one and set the other to null",
    "train.batch_size": "samples an update",
    "train.micro_batch": "samples a forward; smaller ones accumulate",
    "resume=last": "go on with the newest run of this name",
    "run.dir=PATH": "the exact folder of the run",
    "device=cpu": "auto, cpu, cuda or cuda:N",
    "plugin=./mine.py": "your own models, data, losses, optimizers: a file, a module, or a list",
}
_FLAGS = {
    "-m, --multirun": "sweep: a=1,2 b=3,4 gives four jobs, each in a process of its own",
    "--cfg job": "print the composed configuration and stop",
    "--version": "print the version",
    "-h, --help": "this text",
}


def text() -> str:
    """The help, one screen."""
    lines = ["usage: trainer4090 [verb] [key=value ...] [-m]", "", "verbs:"]
    lines += [f"  {verb.name:<12} {verb.help}\n{'':15}{verb.name} {verb.usage}" for verb in VERBS.values()]
    lines += ["", "groups and their options (group=option; memory, kernels and metrics take a list: memory=[a,b]):"]
    lines += [f"  {group:<12} {' '.join(paths.options(group))}" for group in paths.groups()]
    lines += ["", "keys used most (all of them: --cfg job):", *_table(_KEYS), "", "flags:", *_table(_FLAGS), ""]
    lines += ["example: trainer4090 precision=amp memory=checkpoint train.micro_batch=32"]
    return "\n".join(lines)


def of_verb(verb: Verb) -> str:
    """The keys of a verb that has its own, with their defaults and what each allows."""
    rows = _of_section(verb.section) if verb.section else _of_options(verb)
    return "\n".join([f"usage: trainer4090 {verb.name} {verb.usage}", "", verb.help, "", *_table(rows)])


def _of_options(verb: Verb) -> dict[str, str]:
    options = verb.options()
    defaults = options()
    return {
        f"{name}={'null' if (value := getattr(defaults, name)) is None else value}": describe(annotation)
        for name, annotation in field_types(options).items()
    }


def _of_section(section: str) -> dict[str, str]:
    """Keys of a section of the configuration, with the comments that stand beside them."""
    lines = (paths.CONF / "config.yaml").read_text(encoding="utf-8").split(f"\n{section}:")[1].splitlines()[1:]
    own = itertools.takewhile(lambda line: line.startswith("  "), lines)
    pairs = (line.strip().partition("  # ")[::2] for line in own)
    return {f"{section}.{assignment.replace(': ', '=', 1)}": comment for assignment, comment in pairs}


def _table(rows: dict[str, str]) -> list[str]:
    width = max(len(name) for name in rows) + 2
    return [f"  {name:<{width}}{meaning}" for name, meaning in rows.items()]
