"""Composition: the words of a command line and the YAML files become one plain tree. The only door to Hydra.

`compose` first lets Hydra try. When that fails it asks again, override by override, so that every problem is found and
named in our own words: Hydra stops at the first, and for a typing error it advises `+`, which would hide it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer4090 import paths
from trainer4090.errors import ConfigError, Problem
from trainer4090.schema import suggestion
from trainer4090.spec import flatten
from trainer4090.vocabulary import translate

CONFIG_NAME = "config"


@dataclass(frozen=True)
class Composition:
    """A composed tree, interpolations resolved, and which recipe and options it was made from."""

    tree: dict[str, Any]
    choices: dict[str, str | None]

    @property
    def default_name(self) -> str:
        """Name of a run that was given none: the recipe, or data and model as they were chosen."""
        recipe = self.choices.get("recipe")
        return recipe if recipe not in (None, "none") else f"{self.choices.get('data')}-{self.choices.get('model')}"


def compose(overrides: Sequence[str]) -> Composition:
    """The tree that `overrides` (Hydra's syntax, no sweeps) give.

    Raises:
        ConfigError: with every problem of the command line and the recipe.
    """
    problems = [problem for override in overrides for problem in translate(override)]
    if problems:
        raise ConfigError(*problems)
    try:
        return settle(_compose(overrides))
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(*(_diagnose(overrides) or [_unexpected(error)])) from error


def settle(config: DictConfig) -> Composition:
    """The tree without Hydra's own section, interpolations resolved and an absent run name filled in.

    Raises:
        ConfigError: a reference leads nowhere; the message has the key that holds it.
    """
    choices = dict(config.hydra.runtime.choices)
    own = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    problems = list(_dangling(own))
    if problems:
        raise ConfigError(*problems)
    tree: Any = OmegaConf.to_container(own, resolve=True)
    composition = Composition(tree, choices)
    if isinstance(tree.get("run"), dict) and tree["run"].get("name") is None:
        tree["run"]["name"] = composition.default_name
    return composition


def _compose(overrides: Sequence[str]) -> DictConfig:
    register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(paths.CONF), version_base="1.3"):
        return hydra.compose(CONFIG_NAME, list(overrides), return_hydra_config=True)


def register() -> None:
    """Make our config source, search path and launcher known to Hydra; may be called again."""
    from hydra._internal.sources_registry import SourcesRegistry

    from trainer4090.recipe_source import CheckedSource, SearchPath
    from trainer4090.sweep_launcher import register_launcher

    with _without_working_directory():
        plugins = Plugins.instance()
    if SearchPath.__name__ not in {plugin.__name__ for plugin in plugins.discover()}:
        plugins.register(SearchPath)
        SourcesRegistry.instance().register(CheckedSource)
        register_launcher()


@contextmanager
def _without_working_directory() -> Iterator[None]:
    """Hide the working directory from imports: Hydra imports any `hydra_plugins` folder that it finds on the path."""
    kept = list(sys.path)
    here = os.path.realpath(os.getcwd())
    sys.path[:] = [entry for entry in kept if entry and os.path.realpath(entry) != here]
    try:
        yield
    finally:
        sys.path[:] = kept


def _dangling(config: DictConfig) -> Iterator[Problem]:
    for key, value in flatten(_raw(config)).items():
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.select(config, key, throw_on_missing=True)
            except OmegaConfBaseException:
                yield Problem(key, f"the reference {value!r} leads nowhere", "name an existing key, like ${optimizer.lr}")


def _raw(config: DictConfig) -> dict[str, Any]:
    tree: Any = OmegaConf.to_container(config, resolve=False)
    return tree


def _diagnose(overrides: Sequence[str]) -> list[Problem]:
    """Every override that is wrong by itself: its grammar, its group's options, or its key."""
    problems: list[Problem] = []
    parsed = [override for text in overrides if (override := _parsed(text, problems)) is not None]
    groups = set(paths.groups())
    chosen = [override for override in parsed if override.get_key_element().strip("~+") in groups]
    good = [override for override in chosen if not _extend(problems, _group_problems(override))]
    tree = _tree_of(good, problems)
    if tree is not None:
        for override in parsed:
            if override not in chosen:
                problems.extend(_key_problems(override, tree))
    return problems


def _parsed(text: str, problems: list[Problem]) -> Override | None:
    try:
        return OverridesParser.create().parse_override(text)
    except (OverrideParseException, HydraException):
        key, separator, value = text.partition("=")
        if not separator:
            remedy = "overrides are key=value; see 'trainer4090 --help'"
        else:
            remedy = f"quote the value: {key}='\"{value}\"'"
        problems.append(Problem(key or text, f"cannot read {text!r}", remedy))
        return None


def _extend(problems: list[Problem], found: list[Problem]) -> bool:
    problems.extend(found)
    return bool(found)


def _group_problems(override: Override) -> list[Problem]:
    group = override.get_key_element().strip("~+")
    known = paths.options(group)
    if override.is_delete():
        return [Problem(group, f"cannot be removed ({override.input_line})", f"choose one of {', '.join(known)}")]
    if override.is_sweep_override():
        return [Problem(group, f"a sweep ({override.input_line})", "sweeps need -m")]
    value: Any = override.value()
    problems = []
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in known:
            problems.append(Problem(group, f"unknown option {name!r}", suggestion(str(name), known, "options")))
    return problems


def _tree_of(chosen: Sequence[Override], problems: list[Problem]) -> dict[str, Any] | None:
    try:
        config = _compose([override.input_line or "" for override in chosen])
    except ConfigError as error:
        problems.extend(error.problems)
        return None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        problems.append(_unexpected(error))
        return None
    return _raw(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))


def _key_problems(override: Override, tree: dict[str, Any]) -> Iterator[Problem]:
    key = override.get_key_element().strip("~+")
    if key.split(".")[0] == "hydra":
        return
    if override.is_sweep_override():
        yield Problem(key, f"a sweep ({override.input_line})", f"sweeps need -m; a text with a comma is {key}='\"a,b\"'")
        return
    flat = flatten(tree)
    sections = {prefix for name in flat for prefix in _prefixes(name)}
    if key not in flat and key not in sections:
        yield Problem(key, "unknown key", suggestion(key, _candidates(key, flat), "keys here"))


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _candidates(key: str, flat: dict[str, Any]) -> list[str]:
    """Keys of the section that was meant, or all when there is no such section."""
    section = key.rpartition(".")[0]
    siblings = [name for name in flat if name.rpartition(".")[0] == section] if section else []
    return siblings or [name for name in flat if not name.startswith("card.")]


def _unexpected(error: Exception) -> Problem:
    text = " ".join(str(error).split())
    return Problem("command line", text, "see 'trainer4090 --help' and 'trainer4090 list'")
