"""Speed of training, computed from windows: stretches of the loop that hold updates and nothing else.

A window ends where an evaluation or a save begins and the next one starts behind it, so their time is in no figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Consecutive updates between two marks."""

    num_updates: int
    num_items: int
    """Images or target tokens, over all cards."""
    elapsed_ms: float
    data_wait_s: float
    """Time in which the loop waited for the next batch."""
    warm_up: bool
    """Holds compilation, graph capture or kernel selection, so it says nothing of the steady speed."""


@dataclass(frozen=True)
class Summary:
    """Steady speed of a whole run; None when no window lies after warm-up."""

    items_per_s: float | None
    step_time_ms: float | None
    """Median over updates, each taken as long as the mean of its window."""


def speed_values(
    window: Window, model_flops: float | None = None, peak_tflops: float | None = None
) -> dict[str, float]:
    """Tags of one window; empty for a warm-up window, and without `speed/mfu` when the peak is unknown.

    `model_flops`: of one update over all cards, without recomputation. `peak_tflops`: of all cards together, dense,
    for the arithmetic in use.
    """
    if window.warm_up or window.num_updates < 1 or window.elapsed_ms <= 0:
        return {}
    step_time_ms = window.elapsed_ms / window.num_updates
    values = {
        "speed/items_per_s": window.num_items / window.elapsed_ms * 1000,
        "speed/step_time_ms": step_time_ms,
        # The host's wait can outlast the device's window by the work queued before it.
        "speed/data_wait_fraction": min(window.data_wait_s * 1000 / window.elapsed_ms, 1.0),
    }
    if model_flops is not None:
        values["speed/tflops"] = model_flops / step_time_ms / 1e9
        if peak_tflops is not None:
            values["speed/mfu"] = values["speed/tflops"] / peak_tflops
    return values


def implausible(values: dict[str, float]) -> str | None:
    """Notice for a speed that no card reaches, or None."""
    mfu = values.get("speed/mfu", 0.0)
    if mfu <= 1:
        return None
    return f"speed/mfu is {mfu:.2f}: more than the card's peak, so the peak, the FLOPs or the time is wrong"


def summarize(windows: Sequence[Window]) -> Summary:
    """Items / time over all windows after warm-up, and the median step time."""
    steady = [window for window in windows if not window.warm_up and window.num_updates > 0 and window.elapsed_ms > 0]
    if not steady:
        return Summary(None, None)
    total_ms = sum(window.elapsed_ms for window in steady)
    num_items = sum(window.num_items for window in steady)
    return Summary(num_items / total_ms * 1000, _median_step_time_ms(steady))


def _median_step_time_ms(windows: Sequence[Window]) -> float:
    """Weighted by updates: a short window before an evaluation counts for as little as it holds."""
    times = sorted((window.elapsed_ms / window.num_updates, window.num_updates) for window in windows)
    half = sum(count for _, count in times) / 2
    seen = 0
    for step_time_ms, count in times:
        seen += count
        if seen >= half:
            return step_time_ms
    raise AssertionError("the last window reaches the half")
