"""`predict`: rows of a real run equal the model's own outputs on held-out samples, and what is no input is said."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import run_of
from PIL import Image

from trainer4090 import checkpoint_file, loop, prediction
from trainer4090.__main__ import main
from trainer4090.outputs import Wish, read_outputs

WORDS = ("data=digits", "model=mlp", "model.hidden=[16]")
NAMES = ("cat", "dog", "cow")
LOGITS = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, -2.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was saved, the first held-out digits as PNG files, and their right rows."""
    folder = tmp_path_factory.mktemp("predict")
    run = run_of(*WORDS)
    (folder / "run").mkdir()
    (folder / "run" / "spec.yaml").write_text("", encoding="utf-8")
    progress = loop.Progress(step=3, best={"step": 3, "eval": {"loss": 1.0}})
    checkpoint_file.save(folder / "run", 3, loop.state_of(run, progress), progress.best)
    images, _ = run.data.evaluation.fetch(torch.arange(5), -1)
    (folder / "digits" / "more").mkdir(parents=True)
    for number, image in enumerate(images):
        place = folder / "digits" / ("more" if number > 2 else "") / f"{number}.png"
        Image.fromarray(image[0].numpy()).save(place)
    run.executor.forward.module.eval()
    with torch.no_grad():
        probabilities = run.executor.forward.module(run.data.prepare(images)).softmax(1)
    right = {str(number): row.tolist() for number, row in enumerate(probabilities)}
    (folder / "right.json").write_text(json.dumps(right), encoding="utf-8")
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_the_outputs_on_held_out_samples(
    trained: Path, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(trained)
    out = tmp_path / "rows.jsonl"
    words = ("run=run", "input=digits", f"out={out}", "top=10", "batch_size=2", f"num_workers={workers}", "device=cpu")
    assert main(["predict", *words]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["file"] for row in rows] == [f"digits/{n}.png" for n in range(3)] + [
        f"digits/more/{n}.png" for n in (3, 4)
    ]
    right = json.loads(Path("right.json").read_text(encoding="utf-8"))
    for row in rows:
        given = {row[f"class{rank}"]: row[f"probability{rank}"] for rank in ("", *(f"_{n}" for n in range(2, 11)))}
        expected = right[Path(row["file"]).stem]
        assert [given[str(digit)] for digit in range(10)] == pytest.approx(expected, rel=1e-4)
        assert row["probability"] == max(given.values())


def test_csv_goes_to_stdout_and_notices_do_not(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    assert main(["predict", "run=run", "input=digits/more", "device=cpu"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [list(row) for row in rows] == [["file", "class", "probability"]] * 2


def test_unreadable_files_are_named_and_the_others_written(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(trained)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "a.png").write_bytes(Path("digits/0.png").read_bytes())
    (mixed / "b.jpg").write_bytes(b"no image")
    (mixed / "note.txt").write_text("no image either", encoding="utf-8")
    assert main(["predict", "run=run", f"input={mixed}", f"out={tmp_path / 'rows.csv'}", "device=cpu"]) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"trainer4090: error: {mixed / 'b.jpg'}: unreadable image")
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8").count("\n") == 2


REFUSED = {
    "no input": (["run=run"], 2, "input: missing; give an image, or a folder of images: input=PATH"),
    "input missing": (["run=run", "input=nowhere"], 3, "input: nowhere does not exist; give an image"),
    "empty folder": (["run=run", "input=empty"], 3, "input: empty holds no image; give a folder"),
    "no run": (["run=nowhere", "input=digits"], 2, "run: "),
    "no such file": (["run=run", "checkpoint=other.pt", "input=digits"], 7, "checkpoint: other.pt does not exist"),
    "unknown word": (["run=run", "imput=digits"], 2, "imput: unknown key; did you mean input?"),
    "top": (["run=run", "input=digits", "top=0"], 2, "top: 0; allowed is an integer at least 1"),
    "out is a folder": (["run=run", "input=digits", "out=digits"], 9, "out: digits is a folder"),
    "out nowhere": (["run=run", "input=digits", "out=no/rows.csv"], 9, "out: no is no folder"),
}


@pytest.mark.parametrize(("words", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(
    trained: Path,
    words: list[str],
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    Path("empty").mkdir(exist_ok=True)
    assert main(["predict", *words]) == code
    assert f"trainer4090: error: {text}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "memory: exhausted; use batch_size=32, which is 64 now, or device=cpu"),
        (
            ("batch_size=1", "memory_cap_gib=2"),
            "memory: exhausted within memory_cap_gib=2; use device=cpu, or a larger memory_cap_gib",
        ),
    ],
)
def test_exhausted_memory(
    trained: Path,
    words: tuple[str, ...],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def exhausted(**given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.chdir(trained)
    monkeypatch.setattr(prediction, "predicted", exhausted)
    assert main(["predict", "run=run", "input=digits", *words]) == 6
    assert capsys.readouterr().err.splitlines()[-1] == f"trainer4090: error: {line}"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("data=text", "data.length=8", "model=gpt_tiny"), "continue a text with: trainer4090 generate"),
        (("data=synthetic_images", "model=mlp"), "format=ImageFormat(...)"),
    ],
)
def test_a_run_that_takes_no_image_files(
    words: tuple[str, ...], remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (
        ()
        if words[0] == "data=text"
        else ("data.num_train=64", "data.num_evaluation=8", "data.height=8", "data.width=8")
    )
    path = checkpoint_file.save(tmp_path, 1, loop.state_of(run_of(*words, *small), loop.Progress()), None)
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    assert main(["predict", f"checkpoint={path}", f"input={tmp_path / 'image.png'}", "device=cpu"]) == 2
    assert remedy in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(trained: Path) -> None:
    words = [sys.executable, "-m", "trainer4090", "predict", "run=run", "input=digits", "device=cpu"]
    result = subprocess.run(f"{' '.join(words)} | head -1", shell=True, cwd=trained, capture_output=True, text=True)
    assert result.stdout == "file,class,probability\n"
    assert "Traceback" not in result.stderr


KINDS = {
    "softmax": ("class_logits", NAMES, Wish(2, 0.5), {"class": "dog", "class_2": "cow"}, {"probability": 0.665241}),
    "more outputs than names": ("class_logits", NAMES[:1], Wish(1, 0.5), {"class": "1"}, {"probability": 0.665241}),
    "fewer classes than asked": ("class_logits", NAMES, Wish(9, 0.5), {"class_3": "cat"}, {"probability_3": 0.090031}),
    "sigmoid": ("label_logits", NAMES, Wish(1, 0.7), {"classes": ["dog", "cow"]}, {"cat": 0.5, "dog": 0.880797}),
    "values of classes": ("numbers", NAMES, Wish(1, 0.5), {"class": "dog"}, {"output": 2.0}),
    "values": ("numbers", (), Wish(1, 0.5), {}, {"value_0": 0.0, "value_1": 2.0, "value_2": 1.0}),
}


@pytest.mark.parametrize(("kind", "names", "wish", "texts", "numbers"), KINDS.values(), ids=KINDS)
def test_outputs_are_read(kind: str, names: tuple[str, ...], wish: Wish, texts: dict, numbers: dict) -> None:
    row = read_outputs(LOGITS, kind, names, wish)[0]  # type: ignore[arg-type]
    assert {key: row[key] for key in texts} == texts
    assert {key: row[key] for key in numbers} == pytest.approx(numbers, rel=1e-5)


def test_one_number_has_a_column_of_one_name() -> None:
    assert read_outputs(torch.tensor([[1.5], [2.5]]), "numbers", (), Wish(1, 0.5)) == [{"value": 1.5}, {"value": 2.5}]
