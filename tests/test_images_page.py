"""docs/images.md, followed to the letter in a folder with real digits as PNG and JPEG."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pages
import pytest
from test_package import site as site  # a fixture

COMMANDS = [line for line in pages.commands("images.md") if "cifar10" not in line]


def follow(folder: Path, packages: Path) -> list[str]:
    pages.digit_pictures(folder / "photos", {"train": 24, "val": 6, "test": 4})
    return pages.typed(COMMANDS, folder, packages)


def check(folder: Path, printed: list[str]) -> None:
    by_command = dict(zip(COMMANDS, printed, strict=True))
    assert len(by_command) == 8
    (plan, trained, evaluated, _, elsewhere, _, resumed, swept) = by_command.values()
    assert "eight 24, five 24," in plan and "held out: val/" in plan
    assert "eval accuracy" in trained.splitlines()[-1] and "evaluation split" in evaluated
    with (folder / "answers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    right = [row["file"].split("/")[2] == row["class"] for row in rows]
    accuracy = re.search(r"eval accuracy ([\d.]+)", elsewhere) or pytest.fail(elsewhere)
    assert sum(right) / 40 == pytest.approx(float(accuracy[1]), abs=1e-4), "predict and evaluate agree"
    assert sum(right) >= 8, "chance is 4"
    assert "going on from" in resumed and "done: 120 updates" in resumed
    assert "sweep: 4 jobs, 0 failed" in swept


@pytest.mark.full
def test_the_page_works_with_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    check(tmp_path, follow(tmp_path, site))
