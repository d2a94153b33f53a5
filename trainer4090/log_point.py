"""Log points: what was observed on the device is written one log point later, when reading it waits for nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from trainer4090.errors import NonFiniteError, Problem
from trainer4090.executors.base import StepOutput
from trainer4090.report import Reporter
from trainer4090.report.exhibit import Exhibit
from trainer4090.report.speed import Summary, Window, implausible, speed_values, summarize
from trainer4090.report.timing import Deferred, Mark, elapsed_ms, mark

GIB = 2**30


@dataclass(frozen=True)
class _Stretch:
    """A window whose end the device may not have reached yet."""

    num_updates: int
    num_items: int
    waited_s: float
    start: Mark
    end: Mark
    warm_up: bool

    def measured(self) -> Window:
        """The window; waits for the device if it is not past the end yet."""
        elapsed = elapsed_ms(self.start, self.end)
        return Window(self.num_updates, self.num_items, elapsed, self.waited_s, self.warm_up)


@final
class _Clock:
    """Cuts the loop into stretches that hold updates and nothing else."""

    def __init__(self, device: torch.device) -> None:
        """It stands until `start`. The first stretch holds warm-up."""
        self._device = device
        self._start: Mark | None = None
        self._num_updates = self._num_items = 0
        self._waited_s = 0.0
        self._num_graphs = -1

    @property
    def runs(self) -> bool:
        """Whether a stretch is being measured."""
        return self._start is not None

    def start(self, mark_before: Mark | None = None) -> None:
        """Begin a stretch, now or where the one before ended."""
        self._start = mark(self._device) if mark_before is None else mark_before
        self._num_updates = self._num_items = 0
        self._waited_s = 0.0

    def count(self, num_items: int, waited_s: float) -> None:
        """Note one update of the present stretch."""
        self._num_updates += 1
        self._num_items += num_items
        self._waited_s += waited_s

    def stop(self) -> _Stretch:
        """End the stretch."""
        assert self._start is not None
        # Whoever compiled a graph within it, as for an epoch's smaller tail, has measured no steady speed.
        before, self._num_graphs = self._num_graphs, _num_graphs()
        warm_up = self._num_graphs != before
        start, self._start = self._start, None
        return _Stretch(self._num_updates, self._num_items, self._waited_s, start, mark(self._device), warm_up)


@dataclass(frozen=True)
class _Pending:
    """A log point whose device values are on their way."""

    step: int
    tags: list[str]
    scalars: Deferred
    host: dict[str, float]
    stretch: _Stretch


@final
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
        self.windows: list[Window] = []
        self._reporter = reporter
        self._device = device
        self._flops_per_item = flops_per_item
        self._peak_tflops = peak_tflops
        self._sample_gpu = sample_gpu
        self._clock = _Clock(device)
        self._pending: _Pending | None = None
        self._warned = False

    def begin(self) -> None:
        """Start the first window."""
        self._clock.start()

    def count(self, num_items: int, waited_s: float) -> None:
        """Note one update of the present window."""
        self._clock.count(num_items, waited_s)

    def observe(self, step: int, output: StepOutput) -> None:
        """Close the window at a log point, start copying its values, and write the log point before."""
        self._write_pending({})
        tags, tensors, host = _observed(output)
        stretch = self._clock.stop()
        self._pending = _Pending(step, tags, Deferred(tensors), host | _memory(self._device), stretch)
        self._clock.start(stretch.end)

    def pause(self) -> None:
        """Stop the clock: an evaluation or a save follows. Its time belongs to no window."""
        if self._clock.runs:
            stretch = self._clock.stop()
            if stretch.num_updates:  # between two log points: it counts for the summary, its values are not written
                self.windows.append(stretch.measured())

    def resume(self) -> None:
        """Start a new window if the clock stands."""
        if not self._clock.runs:
            self._clock.start()

    def evaluated(self, step: int, evaluation: dict[str, float]) -> None:
        """Write an evaluation, together with the log point of the same update if there is one."""
        values = {f"eval/{name}": value for name, value in evaluation.items()}
        if self._pending is not None and self._pending.step == step:
            self._write_pending(values)
            return
        self._write_pending({})
        self._reporter.write(step, values)

    def notice(self, text: str) -> None:
        """Tell the user something that training has met."""
        self._reporter.notice(text)

    def show(self, step: int, exhibits: Sequence[Exhibit]) -> None:
        """Hand on what is shown of the model."""
        if exhibits:
            self._reporter.show(step, exhibits)

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
        steady = summarize(self.windows)
        if steady.items_per_s is not None:
            return steady
        return summarize([replace(window, warm_up=False) for window in self.windows])

    def _write_pending(self, extra: dict[str, float], judge: bool = True) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        values = pending.host | dict(zip(pending.tags, pending.scalars.read(), strict=True))
        diverged = values.pop("diverged", 0.0) > 0
        scaled = "applied" in values
        if scaled:
            values["train/skipped_updates"] = pending.step - values.pop("applied")
        window = pending.stretch.measured()
        self.windows.append(window)
        flops = None if self._flops_per_item is None else self._flops_per_item * window.num_items / window.num_updates
        values |= speed_values(window, flops, self._peak_tflops) | self._sample_gpu() | extra
        self._warn_once(values)
        self._reporter.write(pending.step, values)
        if judge and (diverged or not (scaled or math.isfinite(values["train/loss"]))):
            raise non_finite("train/loss", values["train/loss"], pending.step)

    def _warn_once(self, values: dict[str, float]) -> None:
        text = implausible(values)
        if text is not None and not self._warned:
            self._warned = True
            self._reporter.notice(text)


def _num_graphs() -> int:
    """Graphs that torch.compile has made so far, without importing it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else dynamo.counters["stats"]["unique_graphs"]


def _observed(output: StepOutput) -> tuple[list[str], list[torch.Tensor], dict[str, float]]:
    """Tags of the values that lie on the device, these values, and those that are host numbers."""
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
    return list(tensors), list(tensors.values()), host


def _memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}  # torch counts a CPU's allocations as 0, which would be logged as a peak
    statistics = torch.cuda.memory_stats(device)
    return {
        "memory/allocated_gib": statistics["allocated_bytes.all.peak"] / GIB,
        "memory/reserved_gib": statistics["reserved_bytes.all.peak"] / GIB,
        "memory/alloc_retries": float(statistics["num_alloc_retries"]),
    }


def non_finite(key: str, value: object, step: int) -> NonFiniteError:
    """The error of a run whose `key` (a tag, a parameter or a buffer) is no number any more."""
    remedy = "lower optimizer.lr, set train.clip_norm=1, or use precision=bf16 or fp32"
    return NonFiniteError(Problem(key, f"{value} at update {step}", remedy))
