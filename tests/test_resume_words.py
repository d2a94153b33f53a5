"""What `resume=` finds, what a resumed run may change, and what it remembers of its first start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import runs
import yaml
from runs import COMMON

from trainer4090 import checkpoint_file, resume
from trainer4090.disk import write_text

MLP = (*COMMON, "model=mlp", "model.hidden=[16]", "schedule=constant")
SAVES = "train.checkpoint_every=10"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory whose run stands at update 20 of 40; files of the updates 12 and 20."""
    folder = runs.new_folder(tmp_path_factory.mktemp("begun") / "work")
    with runs.signalled(20):
        assert runs.train(folder, *MLP, SAVES) == 143
    return folder


@pytest.fixture
def work(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "work", symlinks=True))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def steps_of(folder: Path) -> list[int]:
    return [checkpoint_file.step_of(path) for path in checkpoint_file.files(folder / "run")]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run.dir=run",), 9, "run.dir: run is not empty"),
        (("run.dir=run", "resume=null"), 9, "run.dir: run is not empty"),
        (("resume=last", "run.dir=elsewhere"), 7, "resume: no checkpoint file in elsewhere"),
        (("resume=last",), 7, "resume: no checkpoint file in outputs/digits-cnn"),
        (("resume=elsewhere",), 7, "resume: elsewhere does not exist"),
        (("resume=text.txt",), 7, "resume: no checkpoint file in text.txt"),
        (("resume=run/checkpoints/step-00000099.pt",), 7, "step-00000099.pt does not exist"),
        (("resume=run", "run.dir=elsewhere"), 2, "run.dir: elsewhere beside resume=run"),
        (("resume=run", "train.steps=20", "train.typo=1"), 2, "train.typo: unknown key"),
    ],
    ids=runs.shown,
)
def test_refused_starts(
    work: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, says: str
) -> None:
    before = sorted(work.rglob("*"))
    assert runs.train(work, *words) == code
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        ("resume=last", "run.dir=run"),
        ("resume=auto", "run.dir=run"),
        ("resume=run",),
        ("resume=run/checkpoints/step-00000020.pt",),
        ("resume=run/checkpoints/step-00000012.pt",),
    ],
    ids=runs.shown,
)
def test_accepted_starts(work: Path, words: tuple[str, ...]) -> None:
    assert runs.train(work, *words) == 0
    assert (runs.result(work)["status"], runs.result(work)["steps"]) == ("ok", 40)
    lines = [line["step"] for line in runs.metrics(work)]
    assert lines == sorted(set(lines)) and lines[-1] == 40


def test_newest_run_of_a_name(tmp_path: Path) -> None:
    words = [word for word in MLP if not word.startswith("run.dir")]
    folder = tmp_path / "outputs/mine"
    assert runs.train(tmp_path, *words, "run.name=mine", "train.steps=1") == 0
    next(folder.iterdir()).rename(folder / "2020-01-01_00-00-00-abcdef")
    assert runs.train(tmp_path, *words, "run.name=mine", "train.steps=2") == 0
    assert runs.train(tmp_path, "resume=last", "run.name=mine", "train.steps=3") == 0
    steps = [json.loads((run / "result.json").read_text())["steps"] for run in sorted(folder.iterdir())]
    assert steps == [1, 3]


def test_auto_starts_afresh_where_nothing_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs.new_folder(tmp_path / "work")
    words = (*MLP, "resume=auto")
    (folder / "run").mkdir()
    (folder / "run/.lock").touch()
    (folder / "run/.spec.yaml.1.tmp").touch()
    assert runs.train(folder, *words) == 0
    assert "nothing to go on with, starting afresh" in capsys.readouterr().out
    whole = runs.outcome(folder)
    shutil.rmtree(folder / "run/checkpoints")  # as if killed before the first save, having logged already
    assert runs.train(folder, *words) == 0
    assert runs.differences(runs.outcome(folder), whole) == []
    assert not list((folder / "run").glob(".*.tmp"))


def test_auto_does_not_take_a_foreign_folder(tmp_path: Path) -> None:
    folder = runs.new_folder(tmp_path / "work")
    assert runs.train(folder, *MLP, "run.dir=.", "resume=auto") == 9


def test_newest_damaged_file_is_skipped_and_set_aside(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(work / "run/checkpoints/step-00000020.pt")
    assert runs.train(work, "resume=last", "run.dir=run", "train.checkpoint_every=7", "train.steps=22") == 0
    shown = capsys.readouterr().out
    assert "step-00000020.pt is skipped: its content does not match its sha256" in shown
    assert "now aside-step-00000020.pt" in shown and "nothing to do" not in shown
    assert steps_of(work) == [22, 21] and (work / "run/checkpoints/aside-step-00000020.pt").is_file()


@pytest.mark.parametrize("word", ["last", "auto"])
def test_no_valid_file_never_starts_afresh(work: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    for path in checkpoint_file.files(work / "run"):
        damage(path)
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    assert runs.train(work, f"resume={word}", "run.dir=run") == 7
    assert "none of 2 checkpoint files in run/checkpoints is valid" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}


def test_older_file_goes_on_from_there(work: Path) -> None:
    """The newer files are set aside, else they would count as the newest and the new ones be dropped."""
    words = ("resume=run/checkpoints/step-00000012.pt", "train.steps=14", "train.eval_every=99")
    assert runs.train(work, *words) == 0
    assert steps_of(work) == [14, 12] and runs.state(work)["step"] == 14
    assert [line["step"] for line in runs.metrics(work)] == [5, 10, 12, 14]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("model.hidden=[8]", "model.hidden: was"),
        ("data.augment=false", "data.augment: was true, now false"),
        ("loss.label_smoothing=0.1", "loss.label_smoothing: was"),
        ("train.seed=1", "train.seed: was 0, now 1"),
        ("train.batch_size=32", "train.batch_size: was 64, now 32"),
        ("optimizer=adamw", "optimizer.name: was 'sgd', now 'adamw'"),
        ("schedule=cosine", "schedule.name: was 'constant', now 'cosine'"),
    ],
    ids=runs.shown,
)
def test_refused_changes_name_their_key(work: Path, capsys: pytest.CaptureFixture[str], word: str, says: str) -> None:
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    assert runs.train(work, "resume=run", word) == 2
    assert f"trainer4090: error: {says}" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        ("precision=amp", "precision.initial_scale=1024"),
        ("precision=bf16",),
        ("ema.decay=0.999",),  # an average that began at random parameters would still be near them
        ("memory=checkpoint",),
        ("train.micro_batch=16",),
        ("optimizer.lr=0.01", "train.clip_norm=1"),
        ("train.log_every=3", "train.eval_every=6"),
    ],
    ids=runs.shown,
)
def test_accepted_changes(work: Path, words: tuple[str, ...]) -> None:
    assert runs.train(work, "resume=run", *words) == 0
    assert runs.result(work)["steps"] == 40 and runs.result(work)["eval"]["accuracy"] > 0.5


def test_precision_there_and_back(work: Path) -> None:
    for steps, precision in ((25, "amp"), (30, "fp32"), (35, "amp"), (40, "bf16")):
        assert runs.train(work, "resume=run", f"train.steps={steps}", f"precision={precision}") == 0
        assert runs.state(work)["executor"]["update"]["applied"] == steps
    assert runs.result(work)["eval"]["accuracy"] > 0.5


def test_overrides_are_kept_and_the_newest_wins(work: Path) -> None:
    first = (work / "run/overrides.txt").read_text().splitlines()
    assert first == [*MLP, SAVES]
    for steps, every in ((21, 3), (22, 4), (23, 3)):
        assert runs.train(work, "resume=last", "run.dir=run", f"train.steps={steps}", f"train.log_every={every}") == 0
    expected = [word.replace("steps=40", "steps=23").replace("log_every=5", "log_every=3") for word in first]
    assert (work / "run/overrides.txt").read_text().splitlines() == expected


@pytest.mark.parametrize("word", ["a=1", 'a="b\nc"', "a='b\r\nc'", 'a="\u2028\\n"', "a=\u00e9", 'a=\x0b"'], ids=repr)
def test_overrides_survive_their_file(word: str, tmp_path: Path) -> None:
    write_text(tmp_path / "overrides.txt", resume.overrides_text([word, "b=2"]))
    assert resume.overrides_of(tmp_path) == [word, "b=2"]


def test_a_value_with_a_line_break_is_resumed(work: Path) -> None:
    words = (*(word for word in MLP if not word.startswith("run.dir")), "run.dir=broken", 'run.name="two\nlines"')
    assert runs.train(work, *words) == 0
    assert runs.train(work, "resume=last", "run.dir=broken", "train.steps=44") == 0
    assert json.loads((work / "broken/result.json").read_text(encoding="utf-8"))["steps"] == 44
    assert yaml.safe_load((work / "broken/spec.yaml").read_text())["run"]["name"] == "two\nlines"


LENGTHS: dict[str, tuple[tuple[str, ...], int]] = {
    "constant": (("schedule=constant",), 0),
    "multistep": (("schedule=multistep", "schedule.milestones=[4]"), 0),
    "cosine": (("schedule=cosine",), 2),
    "onecycle": (("schedule=onecycle",), 2),
}


@pytest.mark.parametrize("schedule", LENGTHS)
def test_changed_length(tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str) -> None:
    folder = runs.new_folder(tmp_path / "work")
    words, code = LENGTHS[schedule]
    mlp = [word for word in MLP if not word.startswith("schedule")]
    assert runs.train(folder, *mlp, *words, "train.steps=4") == 0
    assert runs.train(folder, "resume=run", "train.steps=8") == code
    error = capsys.readouterr().err
    assert (f"the {schedule} schedule would change from 4 to 8 updates" in error) == (code == 2)
    assert runs.result(folder)["steps"] == (8 if code == 0 else 4)


def test_milestone_comes_in_its_epoch_after_a_resume(tmp_path: Path) -> None:
    """B41: milestone 4, gamma 0.1; epochs 0 to 2, then 3 to 7; the milestone's epoch is the first with the low rate."""
    folder = runs.new_folder(tmp_path / "work")
    words = [word for word in MLP if not word.startswith(("train.", "schedule"))]
    schedule = ("schedule=multistep", "schedule.milestones=[4]", "optimizer.lr=0.1", "optimizer.momentum=0")
    epochs = ("train.log_every=1", "data.limit=128", "train.epochs=3")
    assert runs.train(folder, *words, *schedule, *epochs) == 0
    assert runs.train(folder, "resume=last", "run.dir=run", "train.epochs=8") == 0
    rates = [line["train/lr"] for line in runs.metrics(folder) if "train/lr" in line]
    first_of_epoch = rates[::2]
    assert first_of_epoch == pytest.approx([0.1] * 4 + [0.01] * 4)
    assert rates[1::2] == first_of_epoch


def test_file_of_another_version_is_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = checkpoint_file.load
    monkeypatch.setattr(checkpoint_file, "load", lambda path: {**load(path), "format": 0})
    assert runs.train(work, "resume=run") == 7
    assert "does not fit this run (format 0, this version reads 3)" in capsys.readouterr().err
