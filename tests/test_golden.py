"""Losses of the first hundred updates, kept in `golden/*.json`: no change of the code may move them unnoticed.

When a change is meant to move them, say why in its commit and write them anew:

    PYTHONPATH=. .venv/bin/python tests/test_golden.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_of, train_updates
from equal_runs import tiny

FOLDER = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
"""Relative; bits differ between CPU models. A change of one bit in every parameter moves no loss by more than 1e-6."""
SIZES = {
    "mlp": ("model.hidden=[64,64]", "optimizer=adamw", "optimizer.lr=0.02"),
    "cnn": ("optimizer.lr=0.02", "model.dropout=0"),
    "resnet": ("optimizer.lr=0.00002", "data.num_classes=4"),
    "gpt": ("optimizer=adamw", "optimizer.lr=0.003", "schedule=cosine", "data.path=text.txt"),
    "char_lstm": ("optimizer=adamw", "optimizer.lr=0.003", "model.width=32", "data.path=text.txt"),
}
DTYPES = {"resnet": torch.float64}
"""Else fp32. BatchNorm over eight single pixels makes rounding errors a million times larger in a hundred updates."""
TEXT = "".join(f"{number} times {number} is {number * number}. " for number in range(500))
"""Written beside the run: the text that Python carries differs between its versions."""


def losses_of(model: str, folder: Path) -> list[float]:
    (folder / "text.txt").write_text(TEXT)
    words = [word.replace("text.txt", str(folder / "text.txt")) for word in SIZES[model]]
    return train_updates(run_of(*tiny(model, *words), dtype=DTYPES.get(model, torch.float32)), 100)


SLOW = pytest.param("resnet", marks=pytest.mark.full)


@pytest.mark.parametrize("model", ["mlp", "cnn", SLOW, "gpt", "char_lstm"])
def test_losses_of_a_hundred_updates(model: str, tmp_path: Path) -> None:
    golden: dict[str, Any] = json.loads((FOLDER / f"{model}.json").read_text())
    assert golden["words"] == list(SIZES[model])
    losses = losses_of(model, tmp_path)
    assert losses == pytest.approx(golden["losses"], rel=TOLERANCE)


@pytest.mark.parametrize("model", SIZES)
def test_training_lowers_the_loss(model: str) -> None:
    losses = json.loads((FOLDER / f"{model}.json").read_text())["losses"]
    assert len(losses) == 100
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def write(folder: Path) -> None:
    """Write all golden files anew."""
    torch.set_num_threads(1)
    for model, words in SIZES.items():
        content = {"words": words, "losses": [float(f"{loss:.9g}") for loss in losses_of(model, folder)]}
        (FOLDER / f"{model}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
