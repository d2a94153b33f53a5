"""Models by name. An entry returns the module and the names of its blocks; the networks are in `networks/`."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from trainer4090.errors import ConfigError, MachineError, Problem
from trainer4090.records import Model
from trainer4090.registry import Registry
from trainer4090.schema import Auto, suggestion

MODELS: Registry[Model] = Registry("model", __name__)
"""Builders take `(config, data_traits)`; traits take `(config)` and return `ModelTraits` without importing torch."""


@functools.cache
def classifiers(library: str, decorator: str, remedy: str) -> dict[str, str]:
    """Architecture -> the file of `library`'s folder `models` that defines it, from the source text alone.

    `decorator`: how a definition is marked there. `remedy`: how the library is installed.

    Raises:
        MachineError: it is not.
    """
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        raise MachineError(Problem("model.name", f"{library} is not installed", remedy))
    definition = re.compile(rf"^{re.escape(decorator)}\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
    files = sorted((Path(package.origin).parent / "models").glob("*.py"))
    return {arch: file.stem for file in files for arch in definition.findall(file.read_text(encoding="utf-8"))}


def family_of(arch: str, families: Mapping[str, str]) -> str:
    """The file that defines `arch`.

    Raises:
        ConfigError: there is no such classifier.
    """
    if arch not in families:
        remedy = suggestion(arch, families, "architectures")
        raise ConfigError(Problem("model.arch", f"unknown architecture {arch!r}", remedy))
    return families[arch]


def explicit(value: Auto | int) -> int | None:
    """The number that was given, None for `auto`."""
    return None if value == "auto" else value


def filled(value: Auto | int, found: int) -> int:
    """The number that was given, for `auto` the one found in the data."""
    return found if value == "auto" else value


def nearest_multiples(value: int, divisor: int) -> str:
    """The multiples of `divisor` next to `value`, as words: `96 or 108`."""
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)
