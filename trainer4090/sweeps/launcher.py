"""The default Hydra launcher: every job of a sweep is a fresh process that starts from its own `spec.yaml`.

Hydra's own launcher runs all jobs in one process, where CUDA contexts, allocator peaks and compile caches leak from
job to job and one killed job ends the sweep.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from trainer4090.sweeps import Sweep

_PLUGIN_MODULE = "hydra_plugins.trainer4090"
_running: list[Sweep] = []
"""Hydra makes the launcher from a configuration of plain values, so the sweep has to be found from here."""


@contextmanager
def launching(sweep: Sweep) -> Iterator[None]:
    """Give `sweep` the jobs that Hydra launches inside the block."""
    _running.append(sweep)
    try:
        yield
    finally:
        _running.pop()


class SweepLauncher(Launcher):
    """Gives the jobs to the running sweep; one that fails or is killed leaves the others alone."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what composing the jobs needs."""
        self._context = hydra_context
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs of one batch. A job that did not end well returns None: raising would end the sweep."""
        rows = _running[-1].run(list(enumerate(job_overrides, start=initial_job_idx)), self._compose)
        returns = [JobReturn(overrides=row.overrides, status=JobStatus.COMPLETED) for row in rows]
        for returned, row in zip(returns, rows, strict=True):
            returned.return_value = row.objective
        return returns

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        OmegaConf.set_struct(config, False)
        return config


@dataclass
class LauncherConfig:
    """Node of `hydra/launcher`."""

    _target_: str = f"{_PLUGIN_MODULE}.SweepLauncher"


def register_launcher() -> None:
    """Make the launcher known to Hydra, which accepts plugins of the namespace `hydra_plugins` only."""
    try:
        import hydra_plugins  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        hydra_plugins = types.ModuleType("hydra_plugins")
        hydra_plugins.__path__ = []
        sys.modules["hydra_plugins"] = hydra_plugins
    sys.modules[_PLUGIN_MODULE] = sys.modules[__name__]
    SweepLauncher.__module__ = _PLUGIN_MODULE
    ConfigStore.instance().store(
        group="hydra/launcher", name="trainer4090", node=LauncherConfig, provider="trainer4090"
    )
    Plugins.instance().register(SweepLauncher)
