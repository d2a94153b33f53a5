"""The page on fine-tuning, typed as it stands in an empty folder."""

from __future__ import annotations

import json
from pathlib import Path

import pages
import pytest
from PIL import Image
from test_package import site as site  # a fixture

COMMANDS = [line for line in pages.commands("finetune.md") if "synthetic_images" not in line]
"""What follows the first training; the others are for real photos."""


def follow(folder: Path, packages: Path) -> list[str]:
    Image.new("L", (8, 8), 90).save(folder / "digit.png")
    return pages.typed(COMMANDS, folder, packages)


def check(folder: Path, printed: list[str]) -> None:
    assert len(COMMANDS) == 7
    log = (folder / "tuned/train.log").read_text(encoding="utf-8")
    assert "model.weights: first/checkpoints/step-" in log
    assert "model.freeze: 352 of 94,186 parameters are frozen" in log
    rows = [json.loads(line) for line in (folder / "compared/sweep.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["ok"] * 4
    answers = next(out for line, out in zip(COMMANDS, printed, strict=True) if line.startswith("predict"))
    assert answers.splitlines()[0] == "file,class,probability"
    assert "going on from longer/checkpoints/step-" in printed[-1] and "done: 690 updates" in printed[-1]


@pytest.mark.full
def test_the_page_works_with_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    check(tmp_path, follow(tmp_path, site))
