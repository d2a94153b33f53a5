"""Registries: the names that a configuration may use, and what each name builds.

An option is one Python file in the folder of its registry. Its files are imported on the first look-up, so adding an
option needs no list to edit. They import torch inside builders only, which keeps `list` and every error fast.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainer4090.errors import ConfigError, Problem
from trainer4090.schema import suggestion

Built = TypeVar("Built")


class ContractError(ValueError):
    """An entry is not what its registry asks for; the error says what to write."""

    def __init__(self, given: str, remedy: str) -> None:
        """`given`: what is wrong. `remedy`: what to write instead."""
        super().__init__(f"{given}; {remedy}")
        self.given = given
        self.remedy = remedy


@dataclass(frozen=True)
class Entry(Generic[Built]):
    """A registered option: its name, its typed fields and its builder."""

    name: str
    config: type
    build: Callable[..., Built]
    traits: Callable[..., Any] | None
    """What others must know before anything is built, computed from the Config without torch."""
    module: str
    derive: Callable[..., Any] | None = None
    """(config, data traits) -> the traits of a plugin's model that states none: it is built and looked at."""
    candidates: Callable[..., Mapping[str, tuple[Any, ...]]] | None = None
    """(config, facts) -> for each field that takes `measure` the values there are, the one of `auto` first."""

    @property
    def help(self) -> str:
        """First line of the builder's docstring."""
        return (self.build.__doc__ or "").strip().splitlines()[0]


class Registry(Generic[Built]):
    """Options of one group by name."""

    def __init__(self, group: str, package: str) -> None:
        """`group`: the word on the command line. `package`: where the option files lie, imported on first use."""
        self.group = group
        self._package = package
        self._entries: dict[str, Entry[Built]] = {}
        self._loaded = False

    def register(
        self,
        name: str,
        config: type,
        traits: Callable[..., Any] | None = None,
        candidates: Callable[..., Mapping[str, tuple[Any, ...]]] | None = None,
    ) -> Callable[[Callable[..., Built]], Callable[..., Built]]:
        """Decorator that adds a builder under `name`.

        Raises:
            ContractError: the name is taken (both modules are named), or the builder has no docstring.
        """

        def add(build: Callable[..., Built]) -> Callable[..., Built]:
            known = self._entries.get(name)
            if known is not None:
                given = f"{self.group}={name} is registered by {known.module} and by {build.__module__}"
                raise ContractError(given, "give one of them another name")
            if not (build.__doc__ or "").strip():
                remedy = f'write """What it is.""" below def {build.__name__}: the first line is the help text'
                raise ContractError(f"{self.group}={name} has no docstring", remedy)
            self._entries[name] = Entry(name, config, build, traits, build.__module__, candidates=candidates)
            return build

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._entries)

    def entries(self) -> dict[str, Entry[Built]]:
        """All entries by name."""
        self._load()
        return dict(self._entries)

    def put(self, entries: Mapping[str, Entry[Built]]) -> None:
        """Let `entries` take the place of all that are there."""
        self._entries = dict(entries)

    def get(self, name: str) -> Entry[Built]:
        """The entry called `name`.

        Raises:
            ConfigError: there is none; the message has the nearest name and all of them.
        """
        self._load()
        if name not in self._entries:
            remedy = suggestion(name, self._entries, "options", f"trainer4090 list {self.group}")
            raise ConfigError(Problem(self.group, f"unknown option {name!r}", remedy))
        return self._entries[name]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
