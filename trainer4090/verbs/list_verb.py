"""`list`: groups, and the options of a group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer4090 import paths
from trainer4090.errors import ConfigError, Problem
from trainer4090.parse import REGISTRIES
from trainer4090.schema import suggestion


def run(words: Sequence[str]) -> int:
    """Print the groups, or the options of the groups named by `words`.

    Raises:
        ConfigError: there is no such group.
    """
    known = paths.groups()
    unknown = [
        Problem("list", f"no group {word!r}", suggestion(word, known, "groups")) for word in words if word not in known
    ]
    if unknown:
        raise ConfigError(*unknown)
    for group in words:
        print(f"{group}:")
        for name, path in paths.options(group).items():
            print(f"  {name:<20} {help_of(group, name, path)}")
    if not words:
        print("\n".join(f"{group:<12} {' '.join(paths.options(group))}" for group in known))
    return 0


def help_of(group: str, name: str, path: Path) -> str:
    """One line of help: the registered option's own, or the file's first comment for a preset, card or recipe."""
    registry = REGISTRIES.get(group)
    if registry is not None and name in registry.names():
        return registry.get(name).help
    comments = (line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
    return next((line for line in comments if line and not line.startswith("@package")), "")
