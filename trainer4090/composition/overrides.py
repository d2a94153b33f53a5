"""The words of a command line, each by itself: its grammar, its key's form, its group's options. Composes nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from trainer4090 import paths
from trainer4090.composition.references import ONLY_KEYS, runs_code
from trainer4090.composition.vocabulary import translated_option
from trainer4090.errors import Problem
from trainer4090.schema import shown, suggestion
from trainer4090.spec import LIST_AXES

_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def key_of(word: str) -> str:
    """The key of an override, without the signs that add or delete."""
    return word.partition("=")[0].lstrip("+~")


def text_override(key: str, value: str) -> str:
    """An override that gives `key` exactly the text `value`, whatever characters it has."""
    return f"{key}={QuotedString(value, Quote.double).with_quotes()}"


def quoted(key: str, value: str) -> str:
    """The same, ready to be pasted into a shell."""
    _, _, text = text_override(key, value).partition("=")
    return f"{key}={shlex.quote(text)}"


def without_sign(word: str) -> str:
    """The override without a `+` or `++` before it."""
    return word.lstrip("+")


def read(words: Sequence[str], sweeps: bool = False) -> tuple[list[Override], list[Problem]]:
    """The overrides that are sound by themselves, and the problems of the others. `sweeps`: whether these are sound."""
    sound, problems = [], []
    for word in words:
        found = list(_form_problems(word))
        override = _parsed(word, found) if not found else None
        if override is not None:
            found += _value_problems(override, sweeps)
        if override is not None and not found:
            sound.append(override)
        problems += found
    return sound, problems


def _form_problems(word: str) -> Iterator[Problem]:
    """What is wrong with the part before `=`."""
    key, separator, value = word.partition("=")
    name = key_of(word)
    section, _, leaf = name.rpartition(".")
    if key.startswith("~"):
        yield Problem(name, f"cannot be removed ({word})", f"give it another value: {name}=...")
    elif not separator:
        yield Problem(word, "no override", f"overrides are key=value: type {name or 'key'}={_example(name)}")
    elif re.match(r"hydra($|[./@])", name):
        yield Problem(name, "is Hydra's own", "trainer4090 sets it; a folder is chosen with run.dir=PATH")
    elif "@" in name:
        group = name.partition("@")[0]
        yield Problem(name, "places a group elsewhere", f"a group has one place: type {group}={value}")
    elif not _KEY.fullmatch(name):
        yield Problem(name or word, "no key", "a key is words joined by dots, like train.steps=100")
    elif leaf == "name" and section in paths.groups():
        yield Problem(name, "is set by the choice of the option", f"type {section}={_example(section)}")
    elif key.startswith("+"):
        yield Problem(name, f"'+' adds a key ({word})", f"every key is there already: type {name}={value}")


def _example(key: str) -> str:
    """What may stand behind the `=`."""
    return f"OPTION with one of {', '.join(paths.options(key))}" if key in paths.groups() else "..."


def _parsed(word: str, problems: list[Problem]) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        key, _, value = word.partition("=")
        problems.append(Problem(key, f"cannot read {shown(word)}", _readable(key, value)))
        return None


def _readable(key: str, value: str) -> str:
    """What to type instead of a value that Hydra's grammar does not read."""
    if key in paths.groups():
        return f"type {key}={_example(key)}"
    if runs_code(value):
        return ONLY_KEYS
    if "${" in value:
        return f"a reference is closed and names a key: {key}=${{train.seed}}"
    for opening, closing in _PAIRS.items():
        if value.count(opening) != value.count(closing):
            return f"'{opening}' and '{closing}' come in pairs; a text is quoted: {quoted(key, value)}"
    if value and value[0] in "\"'" and (len(value) == 1 or value[-1] != value[0]):
        return f"close the quote: {quoted(key, value.strip(value[0]))}"
    return f"a text is quoted: {quoted(key, value)}"


def _value_problems(override: Override, sweeps: bool) -> list[Problem]:
    key, word = override.get_key_element(), override.input_line
    if override.is_sweep_override() and not sweeps:
        text = f"; a text with a comma is quoted: {quoted(key, key_value(override))}"
        may_be_text = key not in paths.groups() and "(" not in key_value(override)
        return [Problem(key, f"is a sweep ({word})", f"sweeps need -m{text if may_be_text else ''}")]
    if override.is_sweep_override() and not override.is_discrete_sweep():
        return [Problem(key, f"has no list of values ({word})", f"list them: {key}=a,b")]
    if key not in paths.groups():
        return []
    if not override.is_sweep_override():
        return list(_option_problems(key, override.value()))
    try:
        words = [f"{key}={text}" for text in override.sweep_string_iterator()]
    except HydraException:  # a glob, which would need Hydra's own loader
        return [Problem(key, f"cannot list {word!r}", f"name the options: {', '.join(paths.options(key))}")]
    values = [OverridesParser.create().parse_override(each).value() for each in words]
    return [problem for value in values for problem in _option_problems(key, value)]


def key_value(override: Override) -> str:
    """What stands behind the `=`, as it was typed."""
    return (override.input_line or "").partition("=")[2]


def _option_problems(group: str, value: Any) -> Iterator[Problem]:
    """What is wrong with the choice of one option, or of a list of them."""
    known = paths.options(group)
    if isinstance(value, list) and group not in LIST_AXES:
        yield Problem(group, f"{shown(value)} is a list", f"choose one of {', '.join(known)}")
        return
    names = value if isinstance(value, list) else [value]
    if not names:
        yield Problem(group, "[] chooses nothing", f"choose one or a list of {', '.join(known)}")
    for name in names:
        if isinstance(name, str) and name in known:
            continue
        word = name if isinstance(name, str) else shown(name)
        remedy = suggestion("none" if name is None else word, known, "options", f"trainer4090 list {group}")
        yield translated_option(group, word) or Problem(group, f"unknown option {word!r}", remedy)
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield Problem(group, f"{name} stands twice in {shown(value)}", "name it once")
