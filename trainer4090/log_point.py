"""Log points: what was observed on the device is written one log point later, when reading it waits for nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainer4090.errors import NonFiniteError, Problem
from trainer4090.executors.base import StepOutput
from trainer4090.report import Reporter
from trainer4090.report.speed import Summary, Window, implausible, speed_values, summarize
from trainer4090.report.timing import Deferred, Mark, elapsed_ms, mark

GIB = 2**30


@dataclass(frozen=True)
class _Pending:
    """A log point whose device values are on their way."""

    step: int
    tags: list[str]
    scalars: Deferred
    host: dict[str, float]
    window: tuple[int, int, float, Mark, Mark, bool]


class LogPoints:
    """Collects windows and observations of the loop and hands finished log points to the reporter."""

    def __init__(
        self,
        reporter: Reporter,
        device: torch.device,
        flops_per_item: float | None,
        peak_tflops: float | None,
        sample_gpu: Callable[[], dict[str, float]],
    ) -> None:
        """`flops_per_item`: of the bare model, forward and backward. `sample_gpu`: readings of the card, or nothing."""
        self._reporter = reporter
        self._device = device
        self._flops_per_item = flops_per_item
        self._peak_tflops = peak_tflops
        self._sample_gpu = sample_gpu
        self._windows: list[Window] = []
        self._pending: _Pending | None = None
        self._start: Mark | None = None
        self._updates = self._items = 0
        self._waited_s = 0.0
        self._graphs = 0
        self._warned = False

    def begin(self) -> None:
        """Start the first window, which holds warm-up."""
        self._open()
        self._graphs = -1

    def count(self, num_items: int, waited_s: float) -> None:
        """Note one update of the present window."""
        self._updates += 1
        self._items += num_items
        self._waited_s += waited_s

    def observe(self, step: int, output: StepOutput) -> None:
        """Close the window at a log point, start copying its values, and write the log point before."""
        assert self._start is not None
        self._write_pending({})
        tags, tensors, host = self._split(step, output)
        end = mark(self._device)
        window = (self._updates, self._items, self._waited_s, self._start, end, self._has_compiled())
        self._pending = _Pending(step, tags, Deferred(tensors), host, window)
        self._open(end)

    def pause(self) -> None:
        """Stop the clock: an evaluation or a save follows. Its time belongs to no window."""
        if self._start is not None:
            self._close()
            self._start = None

    def resume(self) -> None:
        """Start a new window if the clock stands."""
        if self._start is None:
            self._open()

    def evaluated(self, step: int, evaluation: dict[str, float]) -> None:
        """Write an evaluation, together with the log point of the same update if there is one."""
        values = {f"eval/{name}": value for name, value in evaluation.items()}
        if self._pending is not None and self._pending.step == step:
            self._write_pending(values)
            return
        self._write_pending({})
        self._reporter.write(step, values)

    def settle(self) -> None:
        """Write what is still on its way.

        Raises:
            NonFiniteError: the last observed loss is not finite.
        """
        self._write_pending({})

    def flush(self) -> None:
        """Write what is still on its way without judging it: the run has failed already."""
        self._write_pending({}, judge=False)

    def summary(self) -> Summary:
        """Steady speed so far; of all windows when the run was too short to have any after warm-up."""
        steady = summarize(self._windows)
        if steady.items_per_s is not None:
            return steady
        return summarize([Window(**{**vars(window), "warm_up": False}) for window in self._windows])

    def _open(self, start: Mark | None = None) -> None:
        self._start = mark(self._device) if start is None else start
        self._updates = self._items = 0
        self._waited_s = 0.0

    def _close(self) -> None:
        """End a window between two log points. It counts for the summary; its values are not written."""
        assert self._start is not None
        if self._updates:
            end = mark(self._device)
            self._note((self._updates, self._items, self._waited_s, self._start, end, self._has_compiled()))

    def _has_compiled(self) -> bool:
        """Whether the window that ends now is the first, or compiled a graph: an epoch's smaller tail is a new shape."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        graphs = 0 if dynamo is None else dynamo.counters["stats"]["unique_graphs"]
        changed = graphs != self._graphs
        self._graphs = graphs
        return changed

    def _note(self, raw: tuple[int, int, float, Mark, Mark, bool]) -> Window:
        updates, items, waited_s, start, end, warm_up = raw
        window = Window(updates, items, elapsed_ms(start, end), waited_s, warm_up)
        self._windows.append(window)
        return window

    def _split(self, step: int, output: StepOutput) -> tuple[list[str], list[torch.Tensor], dict[str, float]]:
        named: dict[str, Any] = {
            "train/loss": output.loss,
            "train/lr": output.learning_rate,
            "train/grad_norm": output.grad_norm,
            "train/loss_scale": output.loss_scale,
            "applied": output.applied,
            "diverged": output.diverged,
        }
        tensors = {tag: value for tag, value in named.items() if isinstance(value, torch.Tensor)}
        host = {tag: value for tag, value in named.items() if isinstance(value, float)}
        return list(tensors), list(tensors.values()), host | self._memory()

    def _memory(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}  # torch counts a CPU's allocations as 0, which would be logged as a peak
        statistics = torch.cuda.memory_stats(self._device)
        return {
            "memory/allocated_gib": statistics["allocated_bytes.all.peak"] / GIB,
            "memory/reserved_gib": statistics["reserved_bytes.all.peak"] / GIB,
            "memory/alloc_retries": float(statistics["num_alloc_retries"]),
        }

    def _write_pending(self, extra: dict[str, float], judge: bool = True) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        values = pending.host | dict(zip(pending.tags, pending.scalars.read(), strict=True))
        diverged = values.pop("diverged", 0.0) > 0
        scaled = "applied" in values
        if scaled:
            values["train/skipped_updates"] = pending.step - values.pop("applied")
        window = self._note(pending.window)
        flops = None if self._flops_per_item is None else self._flops_per_item * window.num_items / window.num_updates
        values |= speed_values(window, flops, self._peak_tflops) | self._sample_gpu() | extra
        self._warn_once(values)
        self._reporter.write(pending.step, values)
        if judge and (diverged or not (scaled or math.isfinite(values["train/loss"]))):
            raise non_finite(pending.step, values["train/loss"])

    def _warn_once(self, values: dict[str, float]) -> None:
        text = implausible(values)
        if text is not None and not self._warned:
            self._warned = True
            self._reporter.notice(text)


def non_finite(step: int, loss: float) -> NonFiniteError:
    """The error of a run whose loss is no number any more."""
    remedy = "lower optimizer.lr, set train.clip_norm=1, or use precision=bf16; resume=last goes on from the last file"
    return NonFiniteError(Problem("train/loss", f"{loss} at update {step}", remedy))
