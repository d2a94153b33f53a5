"""kill -9 from outside, at moments that nobody chose: 50 runs over digits, image folder and tokens, with workers."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import runs
from runs import VARIANTS, WORKERS
from test_kill import SAVES, num_lines, require_sound_files
from test_kill import unkilled as unkilled  # a fixture

NUM_KILLS = 50
NUM_FAST = 3
KINDS = ("cnn", "images", "tokens")
LAST_LINE = 6
"""Of the eight lines of metrics.jsonl: after it a run may end before it is killed."""


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number < NUM_FAST else pytest.mark.full) for number in range(NUM_KILLS)]
)
def test_killed_run_ends_as_the_unkilled_one(unkilled: Any, tmp_path: Path, number: int) -> None:
    variant, draw = KINDS[number % len(KINDS)], random.Random(number)
    words = (*VARIANTS[variant], *SAVES, WORKERS)
    folder = killed(tmp_path, words, draw)
    require_sound_files(folder)
    assert runs.run(folder, words) == 0, runs.output(folder)
    require_sound_files(folder)
    assert runs.differences(runs.outcome(folder), unkilled(variant)) == []
    assert not list((folder / "run").rglob("*.tmp"))


def killed(tmp_path: Path, words: tuple[str, ...], draw: random.Random) -> Path:
    """A folder whose run was killed at a random moment; one that was quicker than the kill does not count."""
    for attempt in range(5):
        folder = runs.new_folder(tmp_path / str(attempt))
        process = runs.start(folder, words)
        lines = draw.randint(0, LAST_LINE)
        while process.exitcode is None and num_lines(folder) < lines:
            time.sleep(0.001)
        time.sleep(draw.random() * (0.02 if lines else 0.5))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            return folder
    raise AssertionError(f"no run of five was killed: {runs.output(folder)}")
