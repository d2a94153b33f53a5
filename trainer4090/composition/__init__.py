"""Composition: the words of a command line and the YAML files become one plain tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from trainer4090.composition import diagnosis, overrides, references
from trainer4090.composition.hydra_compose import REFUSALS, compose_raw
from trainer4090.errors import ConfigError
from trainer4090.plugins.recorded import recorded


@dataclass(frozen=True)
class Composition:
    """A composed tree, references resolved, and which recipe and options it was made from."""

    tree: dict[str, Any]
    choices: dict[str, str | None]

    @property
    def default_name(self) -> str:
        """Name of a run that was given none: the recipe, or data and model as they were chosen."""
        recipe = self.choices.get("recipe")
        return recipe if recipe not in (None, "none") else f"{self.choices.get('data')}-{self.choices.get('model')}"


def compose(words: Sequence[str]) -> Composition:
    """The tree that `words` (overrides in Hydra's syntax, no sweeps) give.

    Raises:
        ConfigError: with every problem of the command line and the recipe.
    """
    _, problems = overrides.read(words)
    if problems:
        raise ConfigError(*diagnosis.problems_of(words))
    try:
        return settle(compose_raw(words))
    except (ConfigError, *REFUSALS) as error:
        raise ConfigError(*diagnosis.problems_of(words)) from error


def settle(config: DictConfig) -> Composition:
    """The tree without Hydra's own section, references resolved and an absent run name filled in.

    Raises:
        ConfigError: a reference leads nowhere; the message has the key that holds it.
    """
    choices = dict(config.hydra.runtime.choices)
    own = diagnosis.own_part(config)
    problems = list(references.unresolved(own))
    if problems:
        raise ConfigError(*problems)
    tree: Any = OmegaConf.to_container(own, resolve=True)
    tree["plugin"] = recorded(tree)
    composition = Composition(tree, choices)
    if isinstance(tree.get("run"), dict) and tree["run"].get("name") is None:
        tree["run"]["name"] = composition.default_name
    return composition
