"""Data that cannot be trained on is named before the first update, through the command a user types."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trainer4090.__main__ import main

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (200, 6, 6), dtype=np.uint8)
LABELS = np.arange(200) % 10
SHORT = ("train.steps=2", "train.epochs=null", "train.batch_size=20", "device=cpu")
MLP = ("model=mlp", "model.hidden=[8]")


def saved(labels: np.ndarray) -> str:
    np.savez("mine.npz", images=IMAGES, labels=labels)
    return "data.path=mine.npz"


def replaced(index: int, value: int) -> np.ndarray:
    labels = LABELS.copy()
    labels[index] = value
    return labels


BAD = {
    "negative label": (
        replaced(7, -1),
        (),
        3,
        "mine.npz: sample 7 has target -1; targets lie in [0, 10); drop samples",
    ),
    "ignored elsewhere": (
        replaced(7, -1),
        (*MLP, "loss.ignore_index=-2"),
        3,
        "or give their value as loss.ignore_index",
    ),
    "labels from one": (LABELS + 1, (*MLP, "model.num_classes=10"), 2, "its labels start at 1: subtract 1"),
    "too few outputs": (
        LABELS,
        (*MLP, "model.num_classes=7"),
        2,
        "model.num_classes: 7, but data=digits has 10 classes",
    ),
    "one class": (LABELS * 0, MLP, 3, "one class teaches nothing"),
    "fewer samples than a batch": (
        LABELS,
        (*MLP, "data.limit=10"),
        3,
        "10 training samples are fewer than train.batch_size=20",
    ),
    "a last batch of one": (
        LABELS,
        ("data.limit=141", "train.steps=8"),
        2,
        "141 samples leave a last micro-batch of 1, too few for BatchNorm",
    ),
    "weights of another model": (
        LABELS,
        (*MLP, f"loss.class_weights={[1.0] * 10}".replace(" ", ""), "model.num_classes=12"),
        2,
        "loss: made for 10 outputs, but the model has 12",
    ),
    "weights of another set": (
        LABELS,
        (*MLP, "loss.class_weights=[1.0,2.0]"),
        2,
        "loss.class_weights: 2 weights; give one",
    ),
}


@pytest.mark.parametrize(("labels", "words", "code", "text"), BAD.values(), ids=BAD.keys())
def test_refused(
    capsys: pytest.CaptureFixture[str], labels: np.ndarray, words: tuple[str, ...], code: int, text: str
) -> None:
    assert main([*SHORT, saved(labels), *words]) == code
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
    assert not Path("outputs").exists()


def test_ignored_targets_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    labels = LABELS.copy()
    labels[[3, 14, 15]] = -1
    assert main([*SHORT, *MLP, saved(labels), "loss.ignore_index=-1"]) == 0
    assert "targets are ignored by the loss" in capsys.readouterr().out
    metrics = Path("outputs/latest/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(np.isfinite(json.loads(line)["train/loss"]) for line in metrics)


def test_every_held_out_sample_counts_once() -> None:
    assert main([*SHORT, *MLP, saved(LABELS), "train.batch_size=32"]) == 0
    accuracy = json.loads(Path("outputs/latest/result.json").read_text(encoding="utf-8"))["eval"]["accuracy"]
    assert (accuracy * 40) == pytest.approx(round(accuracy * 40), abs=1e-9)
