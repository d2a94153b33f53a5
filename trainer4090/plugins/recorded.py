"""What a spec says of the plugins that it was made with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from trainer4090 import plugin_modules
from trainer4090.errors import ConfigError, Problem
from trainer4090.plugins.loading import module_of, options_of
from trainer4090.spec import LIST_AXES, SINGLE_GROUPS, PluginRecord


def recorded(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The plugins of a composed tree as records: those of its key `plugin`, and installed ones whose options it has.

    Raises:
        ConfigError: a name was not loaded, because it stands elsewhere than on the command line.
    """
    typed = [_typed(name) for name in plugin_modules.listed(tree.get("plugin"))]
    chosen = set(_chosen(tree))
    named = {record.path for record in typed}
    found = [
        plugin.record
        for plugin in plugin_modules.loaded()
        if plugin.record.distribution is not None and plugin.record.path not in named
        if chosen & {(group, name) for group, names in options_of(plugin.module).items() for name in names}
    ]
    return [dataclasses.asdict(record) for record in (*typed, *found)]


def _typed(name: str) -> PluginRecord:
    plugin = plugin_modules.find(module_of(name))
    if plugin is None:
        raise ConfigError(Problem("plugin", f"{name} is not loaded", f"type plugin={name} on the command line"))
    return dataclasses.replace(plugin.record, name=name)


def _chosen(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group in SINGLE_GROUPS:
        section = tree.get(group)
        if isinstance(section, Mapping):
            yield group, str(section.get("name"))
    for group in LIST_AXES:
        section = tree.get(group)
        if isinstance(section, Mapping):
            yield from ((group, str(name)) for name in section)
