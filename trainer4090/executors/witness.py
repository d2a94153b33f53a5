"""An executor seen from outside while it warms up: its first losses, what its updates cost, what one of them ran."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, final

import torch

from trainer4090.executors.activity import Activity
from trainer4090.executors.base import StepOutput


@final
class Witness:
    """Stands before an executor. After `num_watched` updates it only counts, so a steady update is not slowed."""

    def __init__(self, executor: Any, parameters: Sequence[torch.Tensor], num_watched: int) -> None:
        """`parameters`: of the model; their device is waited for after every watched update."""
        self._executor = executor
        self._num_watched = num_watched
        self._device = parameters[0].device
        self._activity = Activity(parameters)
        self._num_updates = 0
        self._losses: list[torch.Tensor] = []
        self._applied: list[torch.Tensor] = []
        self._times_ms: list[float] = []

    def __getattr__(self, name: str) -> Any:
        """Whatever else the executor offers."""
        return getattr(self._executor, name)

    def step(self, *arguments: Any, **named: Any) -> StepOutput:
        """Let the executor make one update."""
        self._num_updates += 1
        if self._num_updates > self._num_watched:
            return self._executor.step(*arguments, **named)
        if self._num_updates < self._num_watched:
            output = self._timed(*arguments, **named)
        else:  # the last one: what had to be compiled or captured is there, and its time is no measurement
            with self._activity.watching():
                output = self._executor.step(*arguments, **named)
        # Clones: an executor may write the next update's values into the same memory.
        self._losses.append(output.loss.detach().clone())
        if output.applied is not None:
            self._applied.append(output.applied.clone())
        return output

    def _timed(self, *arguments: Any, **named: Any) -> StepOutput:
        self._wait()
        begin = time.perf_counter()
        output = self._executor.step(*arguments, **named)
        self._wait()
        self._times_ms.append((time.perf_counter() - begin) * 1000)
        return output

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def result(self) -> dict[str, Any]:
        """What `result.json` holds of it; waits for the device. Nothing before the watched updates are over.

        `first_losses`: of the watched updates. `first_applied`: updates applied after each, under loss scaling.
        `first_times_ms`: of all but the last. `active`: see `Activity`, and more of the whole process.
        """
        if self._num_updates < self._num_watched:
            return {}
        return {
            "first_losses": [float(loss) for loss in self._losses],
            "first_applied": [int(applied) for applied in self._applied],
            "first_times_ms": self._times_ms,
            "active": self._activity.facts() | _compiled_graphs() | _arithmetic(self._device),
        }


def _compiled_graphs() -> dict[str, int]:
    """Graphs that torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    count = 0 if dynamo is None else dynamo.counters["stats"]["unique_graphs"]
    return {"compiled_graphs": count} if count else {}


def _arithmetic(device: torch.device) -> dict[str, str]:
    """How this process's matrix products round, from two products whose exact results are known; CUDA only.

    1 + 2^-12 needs 12 bits of mantissa, TF32 keeps 10. 4,096 ones added in fp16 stop at 2,048 or thereabouts.
    """
    if device.type != "cuda":
        return {}
    inputs = torch.full((256, 256), 1 + 2.0**-12, device=device)
    exact = bool((inputs @ torch.eye(256, device=device) == inputs).all())
    ones = torch.ones(256, 4096, dtype=torch.float16, device=device)
    full = bool(((ones @ ones.T) == 4096).all())
    return {
        "float32_products": "exact" if exact else "rounded to TF32",
        "float16_sums": "in float32" if full else "in float16",
    }
