"""docs/text.md, followed to the letter by a newcomer; and what the recipe of that page promises."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, command

PAGE = (REPOSITORY / "docs/text.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(words) for words in re.findall(r"^ {4}python -m trainer4090 (.+)$", PAGE, re.MULTILINE)]
LARGEST_LOSS = 1.6
"""Nats a character of held-out text; the recipe's header has what was measured."""


def followed(folder: Path, *trained_with: str) -> str:
    """What the last command of the page prints; `trained_with` is added to the training."""
    assert [words[0] for words in COMMANDS] == ["data", "plan", "recipe=gpt_text", "evaluate", "generate"]
    for words in COMMANDS:
        added = trained_with if words[0].startswith("recipe=") else ()
        done = command([*words, *added], folder, timeout_s=900)
        assert done.returncode == 0, done.stderr
    return done.stdout


def losses(folder: Path) -> list[Any]:
    lines = (folder / "outputs/latest/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{tag: value for tag, value in json.loads(line).items() if "loss" in tag} for line in lines]


def test_the_page_works(tmp_path: Path) -> None:
    text = followed(tmp_path, "train.steps=2", "model.num_layers=1", "train.batch_size=256")
    assert text.startswith("The ") and len(text) == len("The ") + 300 + 1


@pytest.mark.full
def test_the_recipe_keeps_its_promise_from_either_data_set(tmp_path: Path) -> None:
    """To the letter; the same losses from token files and from the text, bit for bit."""
    for name in ("page", "recipe"):
        (tmp_path / name).mkdir()
    text = followed(tmp_path / "page")
    assert text.startswith("The ") and len(text) == len("The ") + 300 + 1
    done = command(["recipe=gpt_text"], tmp_path / "recipe", timeout_s=900)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "page") == losses(tmp_path / "recipe")
    result = json.loads((tmp_path / "recipe/outputs/latest/result.json").read_text(encoding="utf-8"))
    assert result["eval"]["loss"] <= LARGEST_LOSS
