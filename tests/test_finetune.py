"""The page on fine-tuning, typed as it stands in an empty folder."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import REPOSITORY, command
from test_docs import COMMAND

PAGE = (REPOSITORY / "docs" / "finetune.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    commands = [match.strip().split() for match in COMMAND.findall(PAGE.partition("\n## ")[0])]
    assert len(commands) == 4
    for words in commands:
        done = command(words, tmp_path)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    log = (tmp_path / "tuned/train.log").read_text(encoding="utf-8")
    assert "model.weights: first/checkpoints/step-" in log
    assert "model.freeze: 352 of 94,186 parameters are frozen" in log
    rows = [json.loads(line) for line in (tmp_path / "compared/sweep.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    going_on = command(["resume=tuned"], tmp_path)
    assert going_on.returncode == 0 and "nothing to do" in going_on.stdout
