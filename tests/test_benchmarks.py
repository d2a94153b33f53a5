"""What needs no GPU of the benchmarks: their command lines are such that a user could type."""

from __future__ import annotations

import pytest
from conftest import plan_of

from benchmarks.gpu.__main__ import met, table
from benchmarks.gpu.works import WORKS
from trainer4090.card import load
from trainer4090.paths import options

H200 = load(options("card")["h200"])
LINES = [(name, words) for name, work in WORKS.items() for words in (work.ours, *work.rows.values())]


@pytest.mark.parametrize("words", [words for _, words in LINES], ids=[name for name, _ in LINES])
def test_a_line_is_planned(words: tuple[str, ...]) -> None:
    assert plan_of(*words, card=H200).horizon.total > 0


def measured(ours: float, eager: float, peak: float) -> dict[str, object]:
    turns = {
        "ours": [{"items_per_s": ours, "step_time_ms": 1.0, "peak_gib": peak}],
        "eager": [{"items_per_s": eager, "step_time_ms": 1.0, "peak_gib": 10.0}],
    }
    return {"work": "gpt2_half_memory", "card": "none", "torch": "0", "commit": "0", "turns": turns}


@pytest.mark.parametrize(
    ("figures", "verdict"), [((130, 100, 5.0), True), ((129, 100, 5.0), False), ((130, 100, 5.1), False)]
)
def test_a_row_is_met_by_speed_and_memory(figures: tuple[float, float, float], verdict: bool) -> None:
    row = measured(*figures)
    assert met(row) is verdict
    assert "| 1.3" in table([row]) and f"| {figures[2] / 10:.3f} | 0.5 |" in table([row])
