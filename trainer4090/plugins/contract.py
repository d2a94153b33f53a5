"""What an entry must be before it may be chosen: a typed frozen Config, a builder of the right form, a name.

Every problem says what to write. A built-in entry keeps the same contract by the tests of this repository.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from trainer4090 import paths
from trainer4090.errors import Problem
from trainer4090.plugin_modules import PluginModule, place, text_of
from trainer4090.registry import Entry
from trainer4090.schema import Pattern, Range, field_types, read, shown
from trainer4090.spec import SHARED_KEYS

ARGUMENTS = {
    "model": "config, data",
    "data": "config, seed",
    "loss": "config, data",
    "metrics": "config, data, loss",
    "optimizer": "config",
    "schedule": "config",
    "precision": "config, facts",
    "memory": "config, facts",
    "kernels": "config, facts",
    "parallelism": "config, facts",
}
"""Group -> what its builders take."""
TRAITS_ARGUMENTS = {"model": "config", "data": "config", "loss": "config, data"}
"""Group -> what its traits take."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SCALARS = (bool, int, float, str, type(None))
_READABLE = "int, float, str, bool, a Literal, tuple[T, ...], or one of these with | None"
_FROZEN = "write @dataclass(frozen=True) above class {name}"


def check(plugin: PluginModule, group: str, entry: Entry[Any]) -> Iterator[Problem]:
    """What is wrong with an entry that a plugin registered."""
    option = f"{group}={entry.name}"
    at_builder = location(plugin, entry.build)
    at_config = location(plugin, entry.config) if isinstance(entry.config, type) else at_builder
    found = ((at_builder, each) for each in (*_name_problems(group, entry.name), *_builder_problems(group, entry)))
    for where, (given, remedy) in (*found, *((at_config, each) for each in _config_problems(group, entry.config))):
        yield Problem(where, f"{option}: {given}", remedy)


def location(plugin: PluginModule, subject: Any) -> str:
    """`file:line` of a function or class of a plugin; the file alone when its line is not known."""
    try:
        _, line = inspect.getsourcelines(inspect.unwrap(subject))
        filename = inspect.getsourcefile(inspect.unwrap(subject)) or plugin.record.path
    except (OSError, TypeError):
        return plugin.record.name
    return place(plugin, filename, max(line, 1))


Found = Iterator[tuple[str, str]]
"""What was found, and what to write instead."""


def _name_problems(group: str, name: Any) -> Found:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or yaml.safe_load(name) != name:
        yield f"{name!r} is no name", "a name is one word of letters, digits and '_', and no word of YAML such as null"
    elif (paths.CONF / group / f"{name}.yaml").is_file():
        yield "that is the name of a shipped option", "give it another name"


def _builder_problems(group: str, entry: Entry[Any]) -> Found:
    takes = (("builder", entry.build, ARGUMENTS.get(group)), ("traits", entry.traits, TRAITS_ARGUMENTS.get(group)))
    for what, function, arguments in takes:
        if function is not None and arguments is not None and not _accepts(function, arguments.count(",") + 1):
            name = entry.name if what == "builder" else "traits"
            given = f"its {what} {_called(function)} does not take ({arguments})"
            yield given, f"write def {name}({arguments}):"
    if group in TRAITS_ARGUMENTS or entry.traits is None:
        return
    yield f"{group} has no traits", f"leave traits= out of register({entry.name!r}, Config)"


def _accepts(function: Callable[..., Any], num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except (TypeError, ValueError):
        return False
    return True


def _called(function: Callable[..., Any]) -> str:
    try:
        return f"{getattr(function, '__name__', 'function')}{inspect.signature(function)}"
    except (TypeError, ValueError):
        return repr(function)


def _config_problems(group: str, config: Any) -> Found:
    name = getattr(config, "__name__", repr(config))
    if not isinstance(config, type):
        yield f"{name} is no class", "give register the class of the fields: register('name', Config)"
        return
    if not dataclasses.is_dataclass(config):
        yield f"{name} is no dataclass", _FROZEN.format(name=name)
        return
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        yield f"{name} is not frozen", _FROZEN.format(name=name)
    yield from _without_annotation(config)
    try:
        hints = get_type_hints(config, include_extras=True)
    except Exception as error:  # an annotation is code of the user's
        yield f"the annotations of {name} cannot be read ({text_of(error)})", "import the types at the top of the file"
        return
    fields = dataclasses.fields(config)
    found = [problem for field in fields for problem in _field_problems(field, hints[field.name])]
    yield from found or _default_problems(config, hints)
    for field in fields:
        if group in SHARED_KEYS and field.name in field_types(SHARED_KEYS[group][1]):
            yield f"{name} has a field {field.name}, a key of every {group}", "give the field another name"
    if group == "data" and "num_workers" not in {field.name for field in fields}:
        yield f"{name} has no num_workers", "add the field num_workers: int = 0"


def _without_annotation(config: type) -> Found:
    """Values that a dataclass takes for no fields."""
    annotated = {name for each in config.__mro__ for name in vars(each).get("__annotations__", {})}
    for name, value in vars(config).items():
        if name.startswith("_") or name in annotated or callable(value) or isinstance(value, (property, staticmethod)):
            continue
        if isinstance(value, classmethod):
            continue
        yield f"{config.__name__}.{name} = {shown(value)} has no annotation, so it is no field", _annotated(name, value)


def _annotated(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        inner = type(value[0]).__name__ if value else "int"
        return f"write {name}: tuple[{inner}, ...] = {tuple(value)!r}"
    kind = type(value).__name__ if isinstance(value, (bool, int, float, str)) else "TYPE"
    return f"write {name}: {kind} = {value!r}"


def _field_problems(field: dataclasses.Field[Any], annotation: Any) -> Found:
    if field.name == "name":
        yield "a field may not be called name", "that key holds the option itself: rename the field"
    elif not field.init:
        yield f"the field {field.name} has init=False", "every field is set by its key: leave init=False out"
    elif not readable(annotation):
        yield f"the field {field.name}: {_spelled(annotation)} has a type that no key can hold", f"write {_READABLE}"


def _default_problems(config: type, hints: dict[str, Any]) -> Found:
    """Defaults that the fields' own types do not allow."""
    defaults = {field.name: default_of(field) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    problems: list[Problem] = []
    read(config, {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}, "", problems)
    for problem in problems:
        value = defaults.get(problem.key)
        if problem.key not in defaults:
            yield f"the defaults are refused: {problem.given}", "give defaults that go together"
        elif value is not dataclasses.MISSING:
            spelled, kind = _spelled(hints[problem.key]), "None" if value is None else type(value).__name__
            given = f"the default of {problem.key}: {spelled} is {problem.given}, but {problem.remedy}"
            yield given, f"correct the default, or write {problem.key}: {spelled} | {kind}"


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default, `dataclasses.MISSING` without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def readable(annotation: Any) -> bool:
    """Whether `schema.convert` knows the type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return isinstance(arguments[1], (Range, Pattern)) and readable(arguments[0])
    if origin is Literal:
        return True
    if origin is tuple:
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return len(set(inner)) == 1 and readable(inner[0])
    if origin in (Union, type(int | str)):
        return all(readable(argument) for argument in arguments)
    return annotation in _SCALARS


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
