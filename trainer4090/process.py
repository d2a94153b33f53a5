"""What a training process sets for itself before torch starts work: flags, its device, its end with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Any

from trainer4090 import device
from trainer4090.errors import MachineError, Problem
from trainer4090.records import Settings

if TYPE_CHECKING:
    import torch

GIB = 2**30
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def apply_settings(settings: Settings, deterministic: bool) -> None:
    """Set environment and backend flags for the whole process, before torch starts work."""
    os.environ.update(settings.environment)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with fixed workspaces
    import torch

    for path, value in settings.flags:
        *parents, name = path.split(".")
        owner: Any = torch
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)
    if deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(deterministic)  # imports the compiler, also for False
    if deterministic:
        torch.backends.cudnn.benchmark = False  # picks the fastest algorithm anew in every process


def torch_device(chosen: device.Choice, cap_gib: float | None) -> torch.device:
    """The torch device with the chosen GPU's UUID; torch numbers GPUs in another order than the driver.

    `cap_gib`: most of its memory that this process may reserve from now on, None for all.

    Raises:
        MachineError: torch does not see that GPU.
    """
    import torch

    if chosen.uuid is None:
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(index).uuid) in chosen.uuid:
            torch.cuda.set_device(index)
            place = torch.device("cuda", index)
            _cap_memory(place, cap_gib)
            return place
    given = f"torch {torch.__version__} does not see {chosen.card.device_name} ({chosen.uuid})"
    raise MachineError(Problem("device", given, "install a CUDA build of torch for this driver, or use device=cpu"))


def _cap_memory(place: torch.device, cap_gib: float | None) -> None:
    """Bound what torch's allocator reserves, before it reserves anything."""
    import torch

    # CUDA gives a process a little less than the driver counts, so a cap that the card allows may lie above all of it.
    share = 1.0 if cap_gib is None else min(cap_gib * GIB / torch.cuda.get_device_properties(place).total_memory, 1.0)
    torch.cuda.set_per_process_memory_fraction(share, place)  # also 1: an earlier run of this process may have had less


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent process ends, so that no job outlives its sweep unseen."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), number)
