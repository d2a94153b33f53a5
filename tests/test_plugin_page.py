"""The page for plugins, followed literally in an empty folder: its files are written, its commands are typed."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import pytest
from conftest import REPOSITORY
from PIL import Image
from test_docs import code_of
from test_package import site as site  # a fixture

PAGE = REPOSITORY / "docs" / "plugins.md"
FILES = re.findall(r"^    # (\w+\.py)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
COMMANDS = pages.commands("plugins.md")
EXPECTED = {
    "list model": "Linear layers with ReLU.",
    "--cfg job": "num_layers: 2",
    "memory=checkpoint": "done: 276 updates",
    "evaluate": "eval loss",
    "predict": "digit.png,",
    "-m plugin": "sweep: 4 jobs, 0 failed",
    "resume=last": "going on from",
    "data=shapes": "eval accuracy 1.0",
    "data=rings": "eval accuracy 1.0",
}
"""Part of a command -> part of what it prints."""


def follow(folder: Path, packages: Path) -> list[str]:
    """Type the page; what each command printed."""
    for name in FILES:
        (folder / name).write_text(code_of(PAGE, name), encoding="utf-8")
    Image.new("L", (32, 32), 90).save(folder / "digit.png")
    return pages.typed(COMMANDS, folder, packages)


def check(printed: list[str]) -> None:
    assert len(COMMANDS) == len(printed) == 11 and FILES == ["mine.py", "shapes.py"]
    for part, text in EXPECTED.items():
        found = [out for line, out in zip(COMMANDS, printed, strict=True) if part in line]
        assert found and all(text in out for out in found), (part, found)


@pytest.mark.full
def test_the_page_works_with_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    check(follow(tmp_path, site))


def test_a_model_takes_about_twenty_lines_and_a_loss_about_ten() -> None:
    text = code_of(PAGE, "mine.py")
    model, loss = text[text.index("class Net") :].split("\n\n\n@dataclass(frozen=True)\nclass FocalConfig")
    lengths = [len([line for line in part.splitlines() if line.strip()]) for part in (model, loss)]
    assert lengths[0] <= 20 and lengths[1] <= 12, lengths
