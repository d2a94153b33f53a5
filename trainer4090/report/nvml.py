"""Readings of the GPU through NVML. Whatever NVML cannot tell is absent; nothing here ends a run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, final

SAMPLE_INTERVAL_S = 1.0

Query = Callable[[Any, Any], float]

QUERIES: Mapping[str, Query] = {
    "gpu/utilization": lambda nvml, handle: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "gpu/power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "gpu/temperature_c": lambda nvml, handle: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    "gpu/sm_clock_mhz": lambda nvml, handle: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
}
"""Tag -> (pynvml, handle) -> reading. Utilisation is percent of time with a kernel running, not of the peak."""


@final
class Sampler:
    """Readings of one GPU, at most one a second; each reading fails on its own."""

    def __init__(
        self, nvml: Any, handle: Any, notice: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`nvml`: the initialised module, or None for a sampler that knows nothing."""
        self._nvml, self._handle, self._notice, self._clock = nvml, handle, notice, clock
        self._values: dict[str, float] = {}
        self._noticed: set[str] = set()
        self._due = float("-inf")

    def values(self) -> dict[str, float]:
        """Tag -> reading, not older than a second; a tag that NVML cannot tell is absent and noticed once."""
        now = self._clock()
        if self._nvml is not None and now >= self._due:
            self._due = now + SAMPLE_INTERVAL_S
            self._values = {tag: value for tag in QUERIES if (value := self._read(tag)) is not None}
        return dict(self._values)

    def close(self) -> None:
        """Lets go of NVML; a second call does nothing."""
        nvml, self._nvml = self._nvml, None
        self._values = {}
        if nvml is not None:
            _shut_down(nvml)

    def _read(self, tag: str) -> float | None:
        try:
            return QUERIES[tag](self._nvml, self._handle)
        except Exception as error:  # NotSupported, Unknown (WSL), GpuIsLost; AttributeError in a look-alike module
            if tag not in self._noticed:
                self._noticed.add(tag)
                self._notice(f"{tag} is not recorded: {type(error).__name__}: {error}")
            return None


def open_sampler(
    uuid: str | None,
    notice: Callable[[str], None],
    nvml: Any = None,
    clock: Callable[[], float] = time.monotonic,
) -> Sampler:
    """Sampler of the GPU with this UUID (with or without the prefix `GPU-`); None, for a CPU run, imports nothing.

    Without a driver, the module or the permission it is a sampler without readings, and one notice says why. `nvml`:
    stands in for the module pynvml.
    """
    if uuid is None:
        return Sampler(None, None, notice, clock)
    try:
        module = _initialised(nvml)
    except Exception as error:  # no module, a broken one, no driver, no permission: there are no readings
        notice(f"gpu/* is not recorded: {type(error).__name__}: {error}")
        return Sampler(None, None, notice, clock)
    try:
        handle = module.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    except Exception as error:  # a container that sees another set of cards
        notice(f"gpu/* is not recorded: {type(error).__name__}: {error}")
        _shut_down(module)
        return Sampler(None, None, notice, clock)
    return Sampler(module, handle, notice, clock)


def describe(nvml: Any = None) -> dict[str, Any]:
    """Driver version and the cards it reports (name, UUID); empty where NVML does not answer."""
    try:
        module = _initialised(nvml)
    except Exception:  # a machine without a card, which is no news
        return {}
    try:
        handles = [module.nvmlDeviceGetHandleByIndex(index) for index in range(module.nvmlDeviceGetCount())]
        cards = [{"name": module.nvmlDeviceGetName(one), "uuid": module.nvmlDeviceGetUUID(one)} for one in handles]
        return {"driver": module.nvmlSystemGetDriverVersion(), "cards": cards}
    except Exception as error:  # the record of the environment says so, the run goes on
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        _shut_down(module)


def _initialised(nvml: Any) -> Any:
    module = importlib.import_module("pynvml") if nvml is None else nvml
    module.nvmlInit()
    return module


def _shut_down(nvml: Any) -> None:
    with suppress(Exception):  # the driver is gone, so is what we held of it
        nvml.nvmlShutdown()
