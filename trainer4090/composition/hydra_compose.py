"""The only door to Hydra's composition; what it cannot compose is for `diagnosis` to explain."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from trainer4090 import paths

CONFIG_NAME = "config"
REFUSALS = (HydraException, OmegaConfBaseException, ValueError)
"""What Hydra raises for words that it cannot compose."""


def compose_raw(words: Sequence[str]) -> DictConfig:
    """Hydra's composition of overrides, its own section included and references unresolved.

    Raises:
        ConfigError: a file of the user holds something other than values.
        REFUSALS: an override does not fit.
    """
    with _initialized():
        return hydra.compose(CONFIG_NAME, list(words), return_hydra_config=True)


def sweep_with(words: Sequence[str]) -> None:
    """Let Hydra's sweeper hand the jobs of `words` to our launcher.

    Raises:
        REFUSALS: the sweep does not compose.
    """

    def task(config: DictConfig) -> None:
        raise AssertionError("the launcher starts every job in a process of its own")

    with _initialized():
        own = GlobalHydra.instance().hydra
        assert own is not None
        own.multirun(CONFIG_NAME, task, list(words), with_log_configuration=False)


@contextmanager
def _initialized() -> Iterator[None]:
    register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(paths.CONF), job_name="trainer4090", version_base="1.3"):
        yield


def register() -> None:
    """Make our config source, search path and launcher known to Hydra; may be called again."""
    from hydra._internal.sources_registry import SourcesRegistry

    from trainer4090.composition.plugin_source import PluginSource
    from trainer4090.composition.recipe_source import CheckedSource, SearchPath
    from trainer4090.sweeps.launcher import register_launcher

    with _without_working_directory():
        plugins = Plugins.instance()
        if SearchPath.__name__ not in {plugin.__name__ for plugin in plugins.discover()}:
            plugins.register(SearchPath)
            SourcesRegistry.instance().register(CheckedSource)
            SourcesRegistry.instance().register(PluginSource)
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
