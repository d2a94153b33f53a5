"""Formats survive a checkpoint file; every data set that can say how its items are read does."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import run_of

from trainer4090 import checkpoint_file, loop
from trainer4090.item_format import ImageFormat, ItemFormat, TokenFormat, from_plain, to_plain

FORMATS = [
    ImageFormat(3, 224, 200, 256, (123.7, 116.3, 103.5), (58.4, 57.1, 57.4), ("cat", "dög")),
    ImageFormat(1, 8, 8, None, (78.1,), (96.2,), ()),
    TokenFormat("characters", "\n abc\u00e9"),
    TokenFormat("bytes", ""),
]


@pytest.mark.parametrize("item_format", FORMATS, ids=repr)
def test_survives_a_checkpoint_file(item_format: ItemFormat, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = checkpoint_file.save(tmp_path / "run", 1, {"format": to_plain(item_format)}, None)
    assert from_plain(checkpoint_file.load(path)["format"]) == item_format


@pytest.mark.parametrize(("data", "model"), [("digits", "mlp"), ("text", "gpt_tiny")])
def test_a_checkpoint_file_says_how_items_are_read(data: str, model: str) -> None:
    run = run_of(f"data={data}", f"model={model}")
    saved = loop.state_of(run, loop.Progress())["data"]
    assert from_plain(saved["format"]) == run.data.format
    assert saved["item_shape"] == list(run.plan.evidence.data.item_shape)
