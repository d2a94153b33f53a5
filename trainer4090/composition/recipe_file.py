"""What a file of the user's may hold: a recipe, or an option of their own `./conf`. Values, and nothing else.

Hydra instantiates what its own section names before any of our code runs, so a recipe with `hydra.callbacks` or a
`_target_` would be a program. Every file that a user can drop into a folder is therefore checked here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from trainer4090 import paths
from trainer4090.composition.references import ONLY_KEYS, runs_code
from trainer4090.errors import Problem
from trainer4090.schema import shown, suggestion
from trainer4090.spec import LIST_AXES

FORBIDDEN_KEYS = frozenset({"hydra", "_target_", "_partial_", "_args_", "_convert_", "_recursive_", "()"})
_OVERRIDE = "override /"


@dataclass(frozen=True)
class Content:
    """A file's tree (its defaults list included) and what is wrong with it."""

    tree: dict[str, Any]
    problems: tuple[Problem, ...]


def read(path: Path, group: str, package: str | None) -> Content:
    """The file of an option of `group` (`recipe` for a recipe); `package` is what its header says."""
    try:
        tree = _loaded(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        return Content({}, (Problem(str(path), f"is no UTF-8 text (byte {error.start})", "save it as UTF-8"),))
    except yaml.YAMLError as error:
        problem = Problem(str(path), f"is no YAML ({' '.join(str(error).split())})", "correct the file")
        return Content({}, (problem,))
    problems = [Problem(str(path), *found) for found in _header_problems(group, package)]
    if isinstance(tree, _Refused):
        problems.append(Problem(str(path), *tree))
        return Content({}, tuple(problems))
    values = dict(tree)
    found = [*_defaults_problems(group, values.pop("defaults", [])), *_tree_problems(values, "")]
    if group == "recipe" and "task" in values:
        found.append(("key 'task'", "the verb stands on the command line: trainer4090 plan recipe=NAME"))
    if group == "recipe" and "plugin" in values:
        remedy = f"no file of values runs code: type plugin={_plugin_word(values['plugin'])} on the command line"
        found.append(("key 'plugin'", remedy))
    return Content(tree, (*problems, *(Problem(str(path), *texts) for texts in found)))


def _plugin_word(value: Any) -> str:
    return value if isinstance(value, str) else "./FILE.py"


class _Refused(tuple[str, str]):
    """What was found and what to do instead, in place of a tree."""


def _loaded(text: str) -> dict[str, Any] | _Refused:
    # Hydra's own YAML dialect: its floats, no dates, and a key that stands twice is an error.
    loader = get_yaml_loader()
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return _Refused((f"an alias (*{event.anchor}) in line {line}", "write the value itself"))
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag not in (None, "!"):
            return _Refused((f"a YAML tag ({event.tag}) in line {line}", "write plain values"))
    tree = yaml.load(text, Loader=loader)
    if tree is None:
        return {}
    return tree if isinstance(tree, dict) else _Refused(("holds no mapping", "write 'key: value' lines"))


Found = Iterator[tuple[str, str]]


def _header_problems(group: str, package: str | None) -> Found:
    if group == "recipe":
        if package != "_global_":
            given = f"has no '# @package _global_' header (package: {package})"
            yield given, "without it every value would land below 'recipe': make it the first line"
    elif group in LIST_AXES:
        if package is None or package.rpartition(".")[0] != group:
            given = f"has no '# @package {group}.OPTION' header (package: {package})"
            yield given, f"{group} takes a list, so an option's values lie below its name: make it the first line"
    elif package not in (None, group):
        yield f"@package {package}", f"an option's values lie below {group}: remove the line"


def _defaults_problems(group: str, defaults: Any) -> Found:
    if group != "recipe":
        if defaults:
            yield "a defaults list", "an option holds values; only a recipe chooses options"
        return
    if not isinstance(defaults, list):
        yield f"defaults: {shown(defaults)} is no list", f"write '- {_OVERRIDE}precision: amp'"
        return
    for entry in defaults:
        if entry != "_self_":
            yield from _entry_problems(entry)


def _entry_problems(entry: Any) -> Found:
    key, value = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, None)
    chosen = str(key).removeprefix(_OVERRIDE)
    groups = [name for name in paths.groups() if name != "recipe"]
    if not str(key).startswith(_OVERRIDE) or chosen not in groups:
        remedy = f"an entry is '{_OVERRIDE}GROUP: OPTION', with a GROUP of {', '.join(groups)}"
        yield f"defaults entry {shown(entry)}", remedy
        return
    known = paths.options(chosen)
    for name in value if isinstance(value, list) and chosen in LIST_AXES else [value]:
        if not isinstance(name, str) or name not in known:
            remedy = suggestion(str(name), known, "options", f"trainer4090 list {chosen}")
            yield f"defaults entry {_OVERRIDE}{chosen}: unknown option {shown(name)}", remedy


def _tree_problems(tree: Any, prefix: str) -> Found:
    if isinstance(tree, dict):
        for key, value in tree.items():
            name = f"{prefix}{key}"
            if key in FORBIDDEN_KEYS:
                yield f"key {name!r}", "a file may set values, not run code or steer Hydra"
            elif not isinstance(key, str) or not key or "." in key or "${" in key:
                yield f"key {name!r}", "keys are plain words; nest sections instead of dots"
            else:
                yield from _tree_problems(value, f"{name}.")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _tree_problems(value, f"{prefix}{index}.")
    elif isinstance(tree, str) and runs_code(tree):
        yield f"{prefix.rstrip('.')} = {tree!r}", ONLY_KEYS
