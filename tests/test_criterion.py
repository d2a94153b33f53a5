"""Which evaluation is the best one, and when waiting for a better one ends: exact, also across a resume."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import COMMON
from test_kill import in_call

from trainer4090 import checkpoint_file, loop
from trainer4090.criterion import Criterion, Waiting
from trainer4090.metrics import METRICS, Metric, average_precision

NAN = None
COURSES = [
    pytest.param(False, 2, 0.0, [3, 2, 1, 2, 1, 0], [0, 0, 0, 1, 2], 3, id="lower"),
    pytest.param(True, 2, 0.0, [1, 2, 3, 2, 3, 9], [0, 0, 0, 1, 2], 3, id="higher"),
    pytest.param(False, 2, 0.0, [3, 4, 2, 4, 1, 4, 4], [0, 1, 0, 1, 0, 1, 2], 5, id="a better one starts afresh"),
    pytest.param(False, 1, 0.0, [1, 1], [0, 1], 1, id="an equal one is no better"),
    pytest.param(False, 2, 0.5, [3, 2.8, 2.6, 2.0], [0, 1, 2], 3, id="small gains are not enough, but are best"),
    pytest.param(False, 3, 0.5, [3, 2.8, 2.4, 2.2, 1.8], [0, 1, 0, 1, 0], 5, id="small gains add up"),
    pytest.param(False, 2, 0.5, [3, 2.5, 2.5], [0, 1, 2], 2, id="exactly the least is not more"),
    pytest.param(True, 2, 0.0, [NAN, NAN, 1], [1, 2], None, id="never a value"),
    pytest.param(True, 2, 0.0, [NAN, 1, NAN, 2, NAN, NAN], [1, 0, 1, 0, 1, 2], 4, id="sometimes none"),
    pytest.param(False, None, 0.0, [1, 2, 3, 4], [0, 1, 2, 3], 1, id="no patience"),
]


@pytest.mark.parametrize(("higher", "patience", "least", "values", "stale", "best"), COURSES)
def test_courses(
    higher: bool, patience: int | None, least: float, values: list[float | None], stale: list[int], best: int | None
) -> None:
    """`stale` after each evaluation up to the end; `best`: the number of the best one."""
    criterion, waiting, found, counts, chosen = Criterion("x", higher, patience, least), Waiting(), None, [], None
    for number, value in enumerate(values, start=1):
        evaluation = {"loss": 0.0} | ({} if value is None else {"x": value})
        if criterion.improves(evaluation, found):
            found, chosen = evaluation, number
        waiting = criterion.after(waiting, evaluation)
        counts.append(waiting.num_stale)
        if criterion.ends(waiting):
            break
    assert (counts, chosen) == (stale, best)


EARLY = (
    *(*COMMON, "model=mlp", "model.hidden=[16]", "model.dropout=0.2", "schedule=constant", "optimizer.lr=0.3"),
    *("train.steps=400", "train.log_every=7", "train.eval_every=5", "train.checkpoint_every=9", "optimizer.momentum=0"),
    *("train.best_by=eval/accuracy", "train.patience=3"),
)
"""Ends early; its evaluations, saves and log points lie at different updates."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    folder = runs.new_folder(tmp_path_factory.mktemp("whole") / "work")
    assert runs.train(folder, *EARLY) == 0
    return folder


def evaluations(folder: Path, tag: str = "eval/accuracy") -> list[tuple[int, float]]:
    return [(line["step"], line[tag]) for line in runs.metrics(folder) if tag in line]


def require_same(folder: Path, whole: Path) -> None:
    """The same but for the older of the kept files: an interruption saves where nothing else does."""
    ours, theirs = runs.outcome(folder), runs.outcome(whole)
    assert ours.pop("files")[0] == theirs.pop("files")[0]
    assert runs.differences(ours, theirs) == []
    ours, theirs = ({key: runs.result(each).get(key) for key in ("best", "stopped_early")} for each in (folder, whole))
    assert ours == theirs


def test_it_ends_when_the_patience_is_exhausted(whole: Path) -> None:
    values, result = evaluations(whole), runs.result(whole)
    best = max(values, key=lambda value: (value[1], -value[0]))
    assert (result["status"], result["stopped_early"]) == ("ok", True)
    assert result["steps"] == values[-1][0] == best[0] + 15 < 400
    assert result["best"]["step"] == best[0] and result["best"]["eval"]["accuracy"] == best[1]
    assert (result["best"]["by"], result["best"]["higher_is_better"]) == ("eval/accuracy", True)
    assert result["eval"]["accuracy"] == values[-1][1]
    log = (whole / "run/train.log").read_text()
    says = f"stopped early at update {result['steps']}: eval/accuracy has become no better for 3 evaluations; the best"
    assert log.count(says) == 1
    pointer = json.loads((whole / "run/checkpoints/best.json").read_text())
    assert pointer["step"] == best[0] == torch.load(whole / "run/checkpoints" / pointer["file"])["step"]
    assert runs.state(whole)["waiting"] == {"reference": best[1], "num_stale": 3}


def steps_to_interrupt(whole: Path) -> Iterator[int]:
    """At the first evaluation, between two, one before the end, and in the last update."""
    end = runs.result(whole)["steps"]
    yield from (5, 13, end - 5, end - 1)


@pytest.mark.parametrize("number", range(4))
def test_a_resumed_run_waits_as_the_uninterrupted_one(whole: Path, tmp_path: Path, number: int) -> None:
    folder = runs.new_folder(tmp_path / "work")
    with runs.signalled(list(steps_to_interrupt(whole))[number]):
        assert runs.train(folder, *EARLY) == 143
    assert "stopped_early" not in runs.result(folder)
    assert runs.train(folder, "resume=last", "run.dir=run") == 0
    require_same(folder, whole)


def test_a_signal_in_the_last_update_changes_nothing(whole: Path, tmp_path: Path) -> None:
    folder = runs.new_folder(tmp_path / "work")
    with runs.signalled(runs.result(whole)["steps"]):
        assert runs.train(folder, *EARLY) == 0
    require_same(folder, whole)


def before_the_result() -> None:
    import trainer4090.worker

    in_call(trainer4090.worker.__name__, "write_json", 1)


@pytest.mark.parametrize("saved", [False, True], ids=["before the save", "before the result"])
def test_killed_at_the_last_evaluation(whole: Path, tmp_path: Path, saved: bool) -> None:
    folder = runs.new_folder(tmp_path / "work")
    number = len(evaluations(whole))
    before_the_save = partial(in_call, loop.__name__, "evaluate", number, after=True)
    prepare = before_the_result if saved else before_the_save
    assert runs.run(folder, (*EARLY, "resume=auto"), prepare) == -signal.SIGKILL
    assert not (folder / "run/result.json").exists()
    end = runs.result(whole)["steps"]
    assert (checkpoint_file.step_of(checkpoint_file.files(folder / "run")[0]) == end) == saved
    assert runs.run(folder, (*EARLY, "resume=auto")) == 0
    require_same(folder, whole)


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy", symlinks=True))


@pytest.mark.parametrize("words", [(), ("train.steps=800",)], ids=["as it was", "a longer course"])
def test_a_run_that_ended_early_is_finished(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    folder = copied(whole, tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    end = runs.result(whole)["steps"]
    capsys.readouterr()
    assert runs.train(folder, "resume=last", "run.dir=run", *words) == 0
    says = f"nothing to do: run stopped early at update {end}; a larger train.patience than 3 goes on\n"
    assert capsys.readouterr().out == says
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_smaller_patience_is_exhausted_too(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(whole, tmp_path)
    assert runs.train(folder, "resume=last", "run.dir=run", "train.patience=2") == 0
    assert "where train.patience ended it: a larger one goes on" in capsys.readouterr().out
    assert runs.result(folder)["steps"] == runs.result(whole)["steps"]


def test_a_larger_patience_goes_on_as_if_it_had_been_there(whole: Path, tmp_path: Path) -> None:
    folder, patient = copied(whole, tmp_path), runs.new_folder(tmp_path / "patient")
    assert runs.train(folder, "resume=last", "run.dir=run", "train.patience=5") == 0
    assert runs.train(patient, *EARLY, "train.patience=5") == 0
    assert runs.result(folder)["steps"] > runs.result(whole)["steps"]
    require_same(folder, patient)


def test_what_chooses_the_best_stays(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(whole, tmp_path)
    assert runs.train(folder, "resume=last", "run.dir=run", "train.best_by=eval/loss") == 2
    assert "train.best_by: was 'eval/accuracy', now 'eval/loss'" in capsys.readouterr().err


def test_a_full_course_is_not_an_early_end(tmp_path: Path) -> None:
    """Patience that is exhausted by the very last evaluation ended nothing."""
    folder = runs.new_folder(tmp_path / "work")
    words = ("train.steps=10", "train.eval_every=5", "train.patience=1", "optimizer.lr=1e-30")
    assert runs.train(folder, *EARLY, *words, "train.best_by=eval/loss") == 0
    assert runs.state(folder)["waiting"]["num_stale"] == 1
    assert runs.result(folder)["steps"] == 10 and "stopped_early" not in runs.result(folder)


class Undefined:
    """An accumulator whose metric has no value."""

    def update(self, outputs: Any, targets: Any) -> None:
        pass

    def result(self) -> float:
        return math.nan


def test_a_metric_without_a_value_is_absent_and_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undefined(*_: Any) -> tuple[Metric, ...]:
        return (Metric("average_precision", True, Undefined),)

    entry = METRICS.get("average_precision")
    monkeypatch.setitem(METRICS._entries, "average_precision", type(entry)(
        entry.name, average_precision.Config, undefined, None, entry.module))  # fmt: skip
    folder = runs.new_folder(tmp_path / "work")
    words = ("metrics=average_precision", "train.best_by=eval/average_precision", "train.patience=2")
    assert runs.train(folder, *EARLY, *words) == 0
    result = runs.result(folder)
    assert (result["steps"], result["stopped_early"]) == (10, True)
    assert "best" not in result and list(result["eval"]) == ["loss", "accuracy"]
    assert not (folder / "run/checkpoints/best.json").exists()
    assert "eval/average_precision was no number in any evaluation" in capsys.readouterr().out
    assert runs.train(folder, "evaluate", "run=run") == 7
    assert "has no best file yet; use checkpoint=last" in capsys.readouterr().err


def test_evaluate_takes_a_split_and_metrics(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(whole, tmp_path)
    capsys.readouterr()
    best = runs.result(whole)["best"]
    assert runs.train(folder, "evaluate", "run=run") == 0
    record = json.loads((folder / "run/evaluation.json").read_text())
    assert record == {"checkpoint": str(Path("run/checkpoints") / f"step-{best['step']:08d}.pt"), "step": best["step"],
                      "split": "evaluation", "eval": best["eval"]}  # fmt: skip
    words = ("split=train", "metrics=[topk,perplexity]", "metrics.topk.k=[2,3]")
    assert runs.train(folder, "evaluate", "run=run", *words) == 0
    assert f"(update {best['step']}, train split): eval loss" in capsys.readouterr().out
    record = json.loads((folder / "run/evaluation.json").read_text())
    assert record["split"] == "train" and record["eval"]["loss"] != best["eval"]["loss"]
    assert list(record["eval"]) == ["loss", "accuracy", "top2", "top3", "perplexity"]
    assert "topk" not in (folder / "run/spec.yaml").read_text()


BAD_EVALUATIONS = {
    "split": (("split=test",), "split: no samples 'test'; allowed is evaluation or train"),
    "unknown": (("metrics=top6",), "metrics: unknown option 'top6'; did you mean top1?"),
    "cannot apply": (("metrics=average_precision",), "metrics: average_precision over samples of one class each"),
    "nothing": (("metrics=[]",), "metrics: no option chosen; choose one or a list of"),
    "field": (("metrics=topk", "metrics.topk.n=3"), "metrics.topk.n: unknown key; did you mean metrics.topk.k"),
    "other group": (("model=cnn",), "model: unknown key"),
}


@pytest.mark.parametrize("case", BAD_EVALUATIONS)
def test_evaluate_refuses(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    words, text = BAD_EVALUATIONS[case]
    folder = copied(whole, tmp_path)
    capsys.readouterr()
    assert runs.train(folder, "evaluate", "run=run", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert not (folder / "run/evaluation.json").exists()
