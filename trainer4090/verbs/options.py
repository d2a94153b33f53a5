"""Words of a verb that is no run, `key=value` read as strictly as a configuration, and where its notices go."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import yaml
from omegaconf._utils import get_yaml_loader

from trainer4090.errors import ConfigError, Problem
from trainer4090.schema import field_types, read

Options = TypeVar("Options")


def read_options(words: Sequence[str], options_type: type[Options]) -> Options:
    """An `options_type` (a frozen dataclass with a default for every field) that holds what `words` say.

    A field of text takes its value as it was typed: a prompt keeps its blanks, and `1` stays a text.

    Raises:
        ConfigError: with every problem of all words.
    """
    problems: list[Problem] = []
    types = field_types(options_type)
    defaults: Any = options_type()
    values: dict[str, Any] = {field: getattr(defaults, field) for field in types}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator:
            problems.append(Problem(word, "no option", f"type key=value: {word}=..."))
        else:
            values[key] = _value(key, text, types.get(key), problems)
    options = read(options_type, values, "", problems)
    if problems or options is None:
        raise ConfigError(*problems)
    return options


def _value(key: str, text: str, annotation: Any, problems: list[Problem]) -> Any:
    optional = type(None) in get_args(annotation)
    if annotation is str or (optional and str in get_args(annotation)):
        return None if optional and text == "null" else text
    try:
        return yaml.load(text, Loader=get_yaml_loader())
    except yaml.YAMLError:
        problems.append(Problem(key, f"cannot read {text!r}", "give a number or a word"))
        return None


def names(options_type: type) -> tuple[str, ...]:
    """The keys that `read_options` takes, in their order."""
    return tuple(field.name for field in dataclasses.fields(options_type))


def to_stderr(text: str) -> None:
    """Print a notice beside a verb's output, which may be a file or the input of another program."""
    print(text, file=sys.stderr, flush=True)
