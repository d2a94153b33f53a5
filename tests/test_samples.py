"""Samples in TensorBoard: what they show is the model's own answer, and training goes on as if nobody had looked."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import runs
import torch
from conftest import run_of
from equal_runs import assert_same
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer4090 import checkpoint_file, samples
from trainer4090.__main__ import main
from trainer4090.errors import ConfigError
from trainer4090.report.exhibit import Passage, Picture

SHORT = ("train.steps=8", "train.eval_every=4")
IMAGES = (*runs.COMMON, "model=mlp", "model.hidden=[16]", "model.dropout=0.5", *SHORT)
TEXT = (*runs.GPT, *SHORT)


def board(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "run" / "tb"), size_guidance={"images": 0, "tensors": 0}).Reload()


@pytest.mark.parametrize("words", [IMAGES, TEXT], ids=["images", "text"])
def test_training_goes_on_as_if_nobody_had_looked(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for number in (0, 3):
        monkeypatch.chdir(runs.new_folder(tmp_path / str(number)))
        assert main([*words, f"train.log_samples={number}"]) == 0
        states.append(checkpoint_file.load(checkpoint_file.files(Path("run"))[0])["executor"])
    assert_same(states[0]["model"], states[1]["model"])


def test_pictures_stand_at_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.new_folder(tmp_path / "work"))
    assert main([*IMAGES, "train.log_samples=2"]) == 0
    shown = board(Path.cwd())
    assert sorted(shown.Tags()["images"]) == ["samples/0", "samples/1"]
    events = shown.Images("samples/0")
    assert [event.step for event in events] == [4, 8]
    image = Image.open(io.BytesIO(events[-1].encoded_image_string))
    assert (image.width, image.height) == (events[-1].width, events[-1].height)
    held_out, _ = run_of(*IMAGES).data.evaluation.fetch(torch.arange(1), -1)
    factor = image.width // 8
    pixels = [[image.getpixel((factor * column, factor * row))[0] for column in range(8)] for row in range(8)]
    assert pixels == held_out[0, 0].tolist()


def test_texts_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.new_folder(tmp_path / "work"))
    assert main([*TEXT, "train.log_samples=1"]) == 0
    (event, _) = board(Path.cwd()).Tensors("samples/0")
    text = event.tensor_proto.string_val[0].decode()
    held_out = Path("text.txt").read_text(encoding="utf-8")[2700:]
    assert held_out[:8] in text
    assert len(text.split("goes on ---")[1].replace(" ", "").strip()) == 16


@pytest.mark.parametrize(
    ("target", "row", "names", "words"),
    [
        (torch.tensor(1), {"class": "cat", "probability": 0.25}, ("cat", "dög"), ("dög", "said cat 0.25")),
        (torch.tensor(2), {"class": "cat", "probability": 0.25}, ("cat", "dog"), ("2", "said cat 0.25")),
        (torch.tensor([0.0, 1.0]), {"classes": [], "a": 0.1, "b": 0.2}, ("a", "b"), ("b", "said nothing")),
        (torch.tensor(1.5), {"value": 1.25}, (), ("1.5", "said 1.25")),
    ],
    ids=["class", "without a name", "labels", "number"],
)
def test_captions(target: torch.Tensor, row: dict, names: tuple[str, ...], words: tuple[str, str]) -> None:
    assert (samples._truth(target, names), samples._words(row)) == words


def test_nothing_is_shown_unless_asked() -> None:
    assert samples.showing(run_of(*IMAGES)) is None


def test_more_than_there_are_shows_all() -> None:
    show = samples.showing(run_of(*IMAGES, "data.limit=100", "train.log_samples=100000"))
    assert show is not None
    exhibits = show()
    assert len(exhibits) == 355
    assert all(isinstance(exhibit, Picture) for exhibit in exhibits)


def test_a_recompiling_model_is_sampled_uncompiled() -> None:
    run = run_of(*TEXT, "data.path=null", "kernels=fused", "kernels.fused.backend=aot_eager", "train.log_samples=1")
    show = samples.showing(run)
    assert show is not None
    assert isinstance(show()[0], Passage)


def test_what_cannot_be_shown_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*IMAGES, "train.log_samples=1")
    floats = run.data.evaluation.fetch(torch.arange(4), -1)[0].float()
    with pytest.raises(ConfigError, match=r"train\.log_samples: samples of data=digits are no images of 8 bits"):
        samples._images(run, floats)
