"""Strict reading of a whole configuration tree into a `RunSpec`. Knows the registries, not Hydra and not torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer4090 import plugin_modules
from trainer4090.card import Card
from trainer4090.data import DATA
from trainer4090.errors import ConfigError, Problem
from trainer4090.kernels import KERNELS
from trainer4090.losses import LOSSES
from trainer4090.memory import MEMORY
from trainer4090.metrics import METRICS
from trainer4090.models import MODELS
from trainer4090.optimizers import OPTIMIZERS
from trainer4090.parallelism import PARALLELISM
from trainer4090.precision import PRECISION
from trainer4090.registry import Registry
from trainer4090.schedules import SCHEDULES
from trainer4090.schema import field_types, read, suggestion
from trainer4090.spec import (
    LIST_AXES,
    SHARED_KEYS,
    SINGLE_GROUPS,
    AblateSection,
    Choice,
    EmaSection,
    LaunchSection,
    RootSection,
    RunSection,
    RunSpec,
    TrainSection,
)

REGISTRIES: dict[str, Registry[Any]] = {
    registry.group: registry
    for registry in (PRECISION, MEMORY, KERNELS, PARALLELISM, MODELS, DATA, LOSSES, METRICS, OPTIMIZERS, SCHEDULES)
}
SECTIONS = {
    "run": RunSection,
    "train": TrainSection,
    "ema": EmaSection,
    "launch": LaunchSection,
    "ablate": AblateSection,
}


def parse(tree: Mapping[str, Any]) -> RunSpec:
    """The spec that `tree` describes.

    Raises:
        ConfigError: with every problem of the whole tree.
    """
    problems: list[Problem] = []
    root_names = list(field_types(RootSection))
    known = {*root_names, *SECTIONS, *SINGLE_GROUPS, *LIST_AXES, "card"}
    for name in tree:
        if name not in known:
            problems.append(Problem(str(name), "unknown key", suggestion(str(name), known, "keys here")))
    root = read(RootSection, {name: tree[name] for name in root_names if name in tree}, "", problems)
    sections: dict[str, Any] = {
        name: read(record, tree.get(name, {}), name, problems) for name, record in SECTIONS.items()
    }
    for group, (name, record) in SHARED_KEYS.items():
        sections[name] = _shared(group, record, tree.get(group), problems)
    singles: dict[str, Any] = {group: _single(group, tree.get(group), problems) for group in SINGLE_GROUPS}
    lists: dict[str, Any] = {group: _listed(group, tree.get(group), problems) for group in LIST_AXES}
    card = _card(tree.get("card"), problems)
    if problems:
        raise ConfigError(*problems)
    assert root is not None
    return RunSpec(root=root, card=card, **sections, **singles, **lists)


def load(path: Path, notice: Callable[[str], None] | None = None) -> RunSpec:
    """The spec saved in a `spec.yaml`. `notice`: told of a plugin that has changed, which else is an error.

    Raises:
        ConfigError: the file is missing, is no YAML, or does not parse, or a plugin of it is not loaded.
    """
    return parse(saved_tree(path, notice))


def saved_tree(path: Path, notice: Callable[[str], None] | None = None) -> dict[str, Any]:
    """The tree in a `spec.yaml`, whose plugins are loaded; they name options that it may hold.

    Raises:
        ConfigError: as `load`, for all but what the tree says.
    """
    try:
        tree: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(
            Problem(str(path), f"cannot be read ({_first_line(error)})", "give a run's folder")
        ) from error
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(Problem(str(path), "holds no mapping", "give a spec.yaml that a run has saved"))
    plugin_modules.require(tree.get("plugin"), path, notice)
    return tree


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _shared(group: str, record: type, tree: Any, problems: list[Problem]) -> Any:
    """The record of the keys that every option of the group has; None beside a problem."""
    if not isinstance(tree, Mapping):
        return None  # `_single` says so
    return read(record, {name: tree[name] for name in field_types(record) if name in tree}, group, problems)


def _single(group: str, tree: Any, problems: list[Problem]) -> Choice | None:
    names = REGISTRIES[group].names()
    if not isinstance(tree, Mapping) or "name" not in tree:
        problems.append(Problem(group, "no option chosen", f"choose one of {', '.join(names)}"))
        return None
    others = {"name", *(field_types(SHARED_KEYS[group][1]) if group in SHARED_KEYS else ())}
    fields = {name: value for name, value in tree.items() if name not in others}
    return _choice(group, tree["name"], fields, group, problems)


def _listed(group: str, tree: Any, problems: list[Problem]) -> tuple[Choice, ...] | None:
    names = REGISTRIES[group].names()
    if not isinstance(tree, Mapping) or not tree:
        problems.append(Problem(group, "no option chosen", f"choose one or a list of {', '.join(names)}"))
        return None
    choices = [_choice(group, name, fields, f"{group}.{name}", problems) for name, fields in tree.items()]
    return tuple(choice for choice in choices if choice is not None)


def _choice(group: str, name: Any, fields: Any, key: str, problems: list[Problem]) -> Choice | None:
    registry = REGISTRIES[group]
    if name not in registry.names():
        problems.append(Problem(group, f"unknown option {name!r}", suggestion(str(name), registry.names(), "options")))
        return None
    config = read(registry.get(name).config, fields, key, problems)
    return None if config is None else Choice(name, config)


def _card(tree: Any, problems: list[Problem]) -> Card | None:
    if isinstance(tree, Mapping) and dict(tree) == {"name": "auto"}:
        return None
    return read(Card, tree, "card", problems)
