"""The words `plugin=` of a command line, which are read before anything is composed: plugins add what may be chosen."""

from __future__ import annotations

from collections.abc import Sequence

from trainer4090.composition import overrides
from trainer4090.errors import ConfigError, Problem
from trainer4090.plugin_modules import listed

KEY = "plugin"


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that `plugin=` gives, and the other words.

    Raises:
        ConfigError: the word cannot be read, stands twice, or is a sweep.
    """
    typed = [word for word in words if word.partition("=")[0] == KEY and "=" in word]
    others = [word for word in words if word not in typed]
    if not typed:
        return [], others
    sound, problems = overrides.read(typed, sweeps=True)
    if problems:
        raise ConfigError(*problems)
    values = [overrides.key_value(override) for override in sound]
    if len(typed) > 1 or sound[0].is_sweep_override():
        names = ",".join(value.strip("[]") for value in values)
        given = "stands twice" if len(typed) > 1 else f"is a sweep ({typed[0]})"
        raise ConfigError(Problem(KEY, given, f"several are one list: type plugin=[{names}]"))
    names = listed(sound[0].value())
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(Problem(KEY, f"{name} stands twice", "name it once"))
    return names, others
