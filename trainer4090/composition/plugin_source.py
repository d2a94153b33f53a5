"""Hydra's view of options that plugins register: each one's fields and defaults, as if a YAML listed them."""

from __future__ import annotations

import dataclasses
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from trainer4090 import paths
from trainer4090.parse import REGISTRIES
from trainer4090.plugins.contract import default_of
from trainer4090.schema import NO_DEFAULT
from trainer4090.spec import LIST_AXES

PATH = "plugin://options"


def tree_of(group: str, name: str) -> dict[str, Any]:
    """The content of the YAML that an option of a plugin does not need."""
    fields = {field.name: _plain(default_of(field)) for field in dataclasses.fields(REGISTRIES[group].get(name).config)}
    return fields if group in LIST_AXES else {"name": name, **fields}


def _plain(default: Any) -> Any:
    if default is dataclasses.MISSING:
        return NO_DEFAULT
    return list(default) if isinstance(default, tuple) else default


class PluginSource(ConfigSource):
    """The last place that Hydra looks: a file of the user's own wins."""

    @staticmethod
    def scheme() -> str:
        """Word before `://` in the search path."""
        return "plugin"

    def available(self) -> bool:
        """Always."""
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        """The option's fields."""
        group, name = _taken_apart(config_path)
        if not self.is_config(config_path):
            raise ConfigLoadError(f"Config not found: {config_path}")
        header = {"package": f"{group}.{name}" if group in LIST_AXES else None}
        config = OmegaConf.create(tree_of(group, name))
        return ConfigResult(config=config, path=PATH, provider=self.provider, header=header)

    def is_group(self, config_path: str) -> bool:
        """Whether plugins have options in this group."""
        return config_path.strip("/") in ("", *paths.of_plugins())

    def is_config(self, config_path: str) -> bool:
        """Whether the path is an option of a plugin."""
        group, name = _taken_apart(config_path)
        return name in paths.of_plugins().get(group, {})

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups or options below the path."""
        group = config_path.strip("/")
        names: set[str] = set()
        if results_filter in (None, ObjectType.GROUP) and group == "":
            names |= set(paths.of_plugins())
        if results_filter in (None, ObjectType.CONFIG):
            names |= set(paths.of_plugins().get(group, {}))
        return sorted(names)


def _taken_apart(config_path: str) -> tuple[str, str]:
    group, _, name = config_path.strip("/").removesuffix(".yaml").partition("/")
    return group, name
