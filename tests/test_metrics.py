"""Metrics are their definitions over the whole evaluation, however it is cut into batches."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import tiny

from trainer4090.errors import ConfigError, MachineError
from trainer4090.loop import evaluate
from trainer4090.losses import LOSSES
from trainer4090.metrics import METRICS, Mean, Metric
from trainer4090.metrics.perplexity import exponential
from trainer4090.metrics.topk import rank
from trainer4090.traits import DataTraits, LossTraits

CLASSES, LABELS = 7, 5
CUTS = {"whole": [60], "ragged": [1, 29, 7, 23], "ones": [1] * 60}
with_library = pytest.mark.skipif(importlib.util.find_spec("torchmetrics") is None, reason="an extra")


def data_of(num_classes: int = CLASSES, multi_label: bool = False) -> DataTraits:
    return DataTraits("images", (1, 2, 2), num_classes, 10, 10, 1, in_memory=True, multi_label=multi_label)


def metrics_of(name: str, data: DataTraits, loss: str = "cross_entropy", **fields: Any) -> tuple[Metric, ...]:
    entry, of_loss = METRICS.get(name), LOSSES.get(loss)
    assert of_loss.traits is not None
    return entry.build(entry.config(**fields), data, of_loss.traits(of_loss.config(), data))


def over(metric: Metric, outputs: torch.Tensor, targets: torch.Tensor, cut: str = "whole") -> float:
    """The metric's result over the parts of a cut."""
    accumulator = metric.start()
    for some_outputs, some_targets in zip(outputs.split(CUTS[cut]), targets.split(CUTS[cut]), strict=True):
        accumulator.update(some_outputs, some_targets)
    return accumulator.result()


def classes(*shape: int, ignored: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (60, *shape, CLASSES) with ties, and classes (60, *shape), a third of them ignored, unevenly, if asked."""
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(60, *shape, CLASSES, generator=generator).mul(2).round().div(2)
    targets = torch.randint(0, CLASSES, (60, *shape), generator=generator)
    if ignored:
        targets[:20] = -100
    return outputs, targets


def labels(num_labels: int = LABELS) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (60, labels) with ties, and targets; label 3, if there is one, never occurs."""
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(60, num_labels, generator=generator).mul(4).round().div(4)
    targets = (torch.rand(60, num_labels, generator=generator) < 0.3).float()
    targets[:, 3:4] = 0
    return outputs, targets


def rows(outputs: torch.Tensor, targets: torch.Tensor) -> list[tuple[list[float], int]]:
    """(scores, class) of every target that counts."""
    pairs = zip(outputs.double().flatten(0, -2).tolist(), targets.flatten().tolist(), strict=True)
    return [(scores, target) for scores, target in pairs if target != -100]


def share_in_first(k: int) -> Callable[[torch.Tensor, torch.Tensor], float]:
    def share(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        found = rows(outputs, targets)
        best = [sorted(range(CLASSES), key=lambda each, of=scores: (-of[each], each))[:k] for scores, _ in found]
        return sum(target in first for first, (_, target) in zip(best, found, strict=True)) / len(found)

    return share


def perplexity(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    losses = [math.log(sum(map(math.exp, scores))) - scores[target] for scores, target in rows(outputs, targets)]
    return math.exp(math.fsum(losses) / len(losses))


BY_HAND = {
    "top1": ("top1", {}, share_in_first(1)),
    "top5": ("top5", {}, share_in_first(5)),
    "top3": ("topk", {"k": (3,)}, share_in_first(3)),
    "perplexity": ("perplexity", {}, perplexity),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("shape", [(), (4,)], ids=["classes", "tokens"])
@pytest.mark.parametrize("ignored", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("name", BY_HAND)
def test_metrics_of_classes(name: str, ignored: bool, shape: tuple[int, ...], cut: str) -> None:
    option, fields, by_hand = BY_HAND[name]
    outputs, targets = classes(*shape, ignored=ignored)
    (metric,) = metrics_of(option, data_of(), **fields)
    assert metric.name == name
    assert over(metric, outputs, targets, cut) == pytest.approx(by_hand(outputs, targets), rel=1e-6)


def test_top1_is_the_accuracy_of_the_losses() -> None:
    """With ties too, which untrained and half-precision models have."""
    outputs, targets = classes()
    (metric,) = metrics_of("top1", data_of())
    accuracy = LOSSES.get("cross_entropy").build(LOSSES.get("cross_entropy").config(), data_of()).metrics["accuracy"]
    assert over(metric, outputs, targets) == pytest.approx(float(accuracy(outputs, targets)) / 60)


def test_a_score_that_is_no_number_is_never_among_the_first() -> None:
    outputs = torch.tensor([[math.nan, 0.0, 1.0], [0.0, math.nan, 1.0]])
    assert rank(outputs, torch.tensor([0, 2])).tolist() == [3, 1]


@pytest.mark.parametrize("name", ["top5", "perplexity"])
def test_without_a_valid_target_there_is_no_value(name: str) -> None:
    outputs, targets = classes()
    (metric,) = metrics_of(name, data_of())
    assert math.isnan(over(metric, outputs, targets.fill_(-100)))
    assert math.isnan(metric.start().result())


def test_a_perplexity_beyond_doubles_is_infinite() -> None:
    assert exponential(709.0) == math.exp(709.0)
    assert exponential(1e6) == math.inf


def test_parts_weigh_by_their_targets() -> None:
    """Means 1 of eight targets and 6 of two are 2.0 together, where a mean of means gives 3.5."""
    mean = Mean(lambda outputs, targets: (outputs.sum(), torch.tensor(len(outputs))))
    for value, number in ((1.0, 8), (6.0, 2)):
        mean.update(torch.full((number,), value), torch.zeros(number))
    assert mean.result() == 2.0


def test_sums_are_in_fp64() -> None:
    mean = Mean(lambda outputs, targets: (outputs.sum(), torch.tensor(1)))
    for _ in range(1000):
        mean.update(torch.tensor([16_777_217.0 / 3]), torch.zeros(1))
    assert mean.result() == float(torch.tensor(16_777_217.0 / 3))


@pytest.mark.parametrize("cut", CUTS)
def test_mean_absolute_error(cut: str) -> None:
    (metric,) = metrics_of("mean_absolute_error", data_of(), "mse")
    outputs, targets = classes()
    wanted = torch.eye(CLASSES)[targets]
    assert over(metric, outputs, targets, cut) == pytest.approx(float((outputs - wanted).abs().mean()), rel=1e-6)
    (metric,) = metrics_of("mean_absolute_error", data_of(1), "mse")
    numbers = outputs[:, :1]
    # Targets without the outputs' last dimension would otherwise give (60, 60) differences.
    expected = float((numbers[:, 0] - outputs[:, 1]).abs().mean())
    assert over(metric, numbers, outputs[:, 1].contiguous(), cut) == pytest.approx(expected, rel=1e-6)


def average_precision(scores: list[float], wanted: list[float]) -> float | None:
    """The sum over descending thresholds of precision x gain in recall, as scikit-learn defines it."""
    positives, total, recall = sum(wanted), 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        hits = [target for score, target in zip(scores, wanted, strict=True) if score >= threshold]
        before, recall = recall, sum(hits) / max(positives, 1)
        total += (recall - before) * sum(hits) / len(hits)
    return total if positives else None


@pytest.mark.parametrize("cut", CUTS)
def test_average_precision(cut: str) -> None:
    outputs, targets = labels()
    (metric,) = metrics_of("average_precision", data_of(LABELS, True), "bce")
    found = [average_precision(outputs[:, each].tolist(), targets[:, each].tolist()) for each in range(LABELS)]
    assert found[3] is None, "a label without a positive counts for nothing"
    present = [value for value in found if value is not None]
    assert over(metric, outputs, targets, cut) == pytest.approx(sum(present) / len(present), rel=1e-12)


KNOWN = [
    pytest.param([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.8333333333333333, id="documented by scikit-learn"),
    pytest.param([1.0, 1.0, 1.0, 1.0], [1, 0, 0, 0], 0.25, id="all tied"),
    pytest.param([3.0, 2.0, 1.0], [1, 1, 0], 1.0, id="perfect"),
    pytest.param([3.0, 2.0, 1.0], [0, 0, 1], 1 / 3, id="last"),
    pytest.param([1.0, 2.0], [0, 0], math.nan, id="no positive"),
    pytest.param([1.0, math.nan], [0, 1], math.nan, id="no number"),
]


@pytest.mark.parametrize(("scores", "wanted", "value"), KNOWN)
def test_known_average_precisions(scores: list[float], wanted: list[float], value: float) -> None:
    accumulator = metrics_of("average_precision", data_of(1, True), "bce")[0].start()
    accumulator.update(torch.tensor(scores)[:, None], torch.tensor(wanted))
    assert accumulator.result() == pytest.approx(value, rel=1e-12, nan_ok=True)


def test_outputs_that_are_written_over_are_kept() -> None:
    """A compiled model may write every batch's outputs into the same memory."""
    outputs, targets = labels()
    (metric,) = metrics_of("average_precision", data_of(LABELS, True), "bce")
    accumulator, memory = metric.start(), torch.empty(30, LABELS)
    for part in (slice(0, 30), slice(30, 60)):
        accumulator.update(memory.copy_(outputs[part]), targets[part])
    assert accumulator.result() == over(metric, outputs, targets)


@pytest.mark.parametrize("name", [name for name in METRICS.names() if name not in ("auto", "torchmetrics")])
def test_updates_read_nothing_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these would wait for a GPU."""
    multi_label = name == "average_precision"
    loss = {"average_precision": "bce", "mean_absolute_error": "mse"}.get(name, "cross_entropy")
    outputs, targets = labels() if multi_label else classes()
    metrics = metrics_of(name, data_of(LABELS if multi_label else CLASSES, multi_label), loss)
    accumulators = [metric.start() for metric in metrics]
    for reading in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero", "__getitem__"):
        monkeypatch.setattr(torch.Tensor, reading, lambda *_, **__: pytest.fail("read back"))
    for accumulator in accumulators:
        accumulator.update(outputs, targets)
    monkeypatch.undo()
    assert all(math.isfinite(accumulator.result()) for accumulator in accumulators)


REFUSED = {
    "top5 of four classes": ("top5", data_of(4), "cross_entropy", {}, "top5 over 4 classes; .*at most k=3"),
    "top3 of three classes": ("topk", data_of(3), "mse", {"k": (2, 3)}, r"metrics\.topk\.k: top3 over 3 classes"),
    "top of nothing": ("topk", data_of(), "mse", {"k": ()}, r"metrics\.topk\.k: \[\] measures nothing"),
    "top1 of labels": ("top1", data_of(5, True), "bce", {}, "several labels; .*use metrics=average_precision"),
    "top1 of numbers": ("top1", data_of(1), "mse", {}, "numbers; .*use metrics=mean_absolute_error"),
    "perplexity of labels": ("perplexity", data_of(5, True), "bce", {}, "several labels"),
    "perplexity of squares": ("perplexity", data_of(), "mse", {}, "use loss=cross_entropy"),
    "precision of classes": ("average_precision", data_of(), "bce", {}, "one class each; .*use metrics=top5"),
    "errors of logits": ("mean_absolute_error", data_of(), "bce", {}, "use loss=mse"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_metric_that_cannot_apply_is_refused(case: str) -> None:
    name, data, loss, fields, text = REFUSED[case]
    with pytest.raises(ConfigError, match=text):
        metrics_of(name, data, loss, **fields)


@pytest.mark.parametrize("name", METRICS.names())
def test_a_loss_that_says_nothing_of_its_outputs_is_trusted(name: str) -> None:
    """A user's own loss may state no traits; data of classes is then measured as such."""
    entry, multi_label = METRICS.get(name), name == "average_precision"
    entry.build(entry.config(), data_of(multi_label=multi_label), LossTraits())


@pytest.mark.parametrize("loss", LOSSES.names())
@pytest.mark.parametrize("data", [data_of(), data_of(1, True), data_of(LABELS, True)], ids=["classes", "one", "labels"])
def test_losses_state_the_metrics_that_they_bring(loss: str, data: DataTraits) -> None:
    entry = LOSSES.get(loss)
    assert entry.traits is not None
    if loss == "cross_entropy" and data.multi_label:
        with pytest.raises(ConfigError, match="use loss=bce"):
            entry.traits(entry.config(), data)
        return
    assert entry.traits(entry.config(), data).metrics.keys() == entry.build(entry.config(), data).metrics.keys()


def test_an_evaluation_has_them_all() -> None:
    run = run_of(*tiny("mlp", "metrics=[top5,perplexity]", batch_size=64))
    train_updates(run, 5)
    found = evaluate(run)
    assert list(found) == ["loss", "accuracy", "top5", "perplexity"] == list(run.plan.evaluation.directions)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-6)
    assert found["accuracy"] < found["top5"] < 1


LABELLED = ("model=mlp", "model.hidden=[16]", "train.epochs=null", "train.steps=40", "train.batch_size=16")


def save_labelled() -> str:
    """Words for data with several labels a sample: which rows of the image are bright."""
    generator = torch.Generator().manual_seed(0)
    bright = torch.rand(200, 4, generator=generator) < 0.4
    images = (bright[:, :, None] * 200).expand(200, 4, 4).to(torch.uint8)
    np.savez("mine.npz", images=images.numpy(), labels=bright.numpy())
    return "data.path=mine.npz"


def test_several_labels_are_learned() -> None:
    words = (*LABELLED, save_labelled(), "data.augment=false", "loss=bce", "metrics=average_precision")
    run = run_of(*words, "train.best_by=eval/average_precision", "optimizer.lr=0.5")
    before = evaluate(run)
    train_updates(run, 40)
    after = evaluate(run)
    assert list(after) == ["loss", "accuracy", "average_precision"]
    assert before["average_precision"] < 0.9 and before["accuracy"] < 0.9
    assert after["average_precision"] > 0.99 and after["accuracy"] > 0.95


def test_several_labels_need_another_loss() -> None:
    with pytest.raises(ConfigError, match="loss: cross_entropy over samples with several labels"):
        plan_of(*LABELLED, save_labelled())


def test_bce_of_classes_learns_the_digits() -> None:
    run = run_of(
        *tiny(
            "mlp",
            "loss=bce",
            "metrics=top5",
            "optimizer=adamw",
            "optimizer.lr=0.02",
            "schedule=constant",
            batch_size=64,
        )
    )
    train_updates(run, 60)
    assert evaluate(run)["accuracy"] > 0.5 < evaluate(run)["top5"]


def test_perplexity_is_not_that_of_the_smoothed_loss() -> None:
    plain = run_of(*tiny("mlp", "metrics=perplexity"))
    smoothed = run_of(*tiny("mlp", "metrics=perplexity", "loss.label_smoothing=0.3"))
    assert evaluate(smoothed)["perplexity"] == evaluate(plain)["perplexity"]
    assert evaluate(smoothed)["loss"] != evaluate(plain)["loss"]


def test_the_training_split_is_evaluated_without_augmentation() -> None:
    run = run_of(*tiny("mlp", "data.limit=100"))
    inputs, targets = run.data.train.fetch(torch.arange(100), -1)
    with torch.no_grad():
        outputs = run.executor.forward.module.eval()(run.executor.forward.prepare(inputs))
    expected = torch.nn.functional.cross_entropy(outputs, targets)
    assert evaluate(run, "train")["loss"] == pytest.approx(float(expected), rel=1e-6) != evaluate(run)["loss"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("metrics=[topk,top5]",), "metrics: top5 measures eval/top5, which is measured already; measure it once"),
        (("metrics=[auto,top5]",), "metrics: [auto, top5] holds auto, which adds nothing; drop auto"),
        (("train.best_by=eval/top5",), "train.best_by: eval/top5 is not evaluated; .*eval/accuracy, eval/loss"),
        (("train.best_by=eval/acuracy",), "did you mean eval/accuracy"),
        (("train.least_improvement=0.1",), "train.least_improvement: 0.1 with train.patience=null; nothing waits"),
    ],
    ids=["twice", "auto", "not-chosen", "typo", "no-patience"],
)
def test_an_evaluation_that_means_nothing_is_refused(words: tuple[str, ...], text: str) -> None:
    pattern = text.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(ConfigError, match=pattern):
        plan_of(*words)


def test_a_plan_says_what_is_evaluated() -> None:
    described = plan_of("metrics=top5", "train.best_by=eval/top5", "train.patience=3").describe()
    says = "evaluation    loss, accuracy, top5; the best by top5, ends after 3 evaluations without a better one"
    assert says in described
    assert "train.patience: asked an end after 3 evaluations, got a onecycle schedule cut short" in described
    assert "notice" not in plan_of("train.patience=3", "schedule=constant").describe()


def library(name: str) -> Any:
    import torchmetrics.classification
    import torchmetrics.regression

    return getattr(torchmetrics.classification, name, None) or getattr(torchmetrics.regression, name)


@with_library
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("ignored", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("name", ["F1Score", "MulticlassF1Score", "AUROC", "CohenKappa", "CalibrationError"])
def test_the_library_on_classes(name: str, ignored: bool, cut: str) -> None:
    outputs, targets = classes(4, ignored=ignored)
    (metric,) = metrics_of("torchmetrics", data_of(), names=(name,))
    given = {"num_classes": CLASSES} | ({} if name.startswith("Multi") else {"task": "multiclass"})
    valid = targets != -100
    expected = library(name)(**given)(outputs[valid].softmax(-1), targets[valid])
    assert metric.name == name
    assert over(metric, outputs, targets, cut) == pytest.approx(float(expected), rel=1e-5)


@with_library
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["F1Score", "MultilabelRankingLoss", "MultilabelAUROC", "HammingDistance"])
def test_the_library_on_labels(name: str, cut: str) -> None:
    """All outputs of some batches lie in [0, 1], where the library alone would take logits for probabilities."""
    outputs, targets = labels()
    outputs, targets = outputs[:, :3], targets[:, :3]
    outputs[0] = 0.25
    (metric,) = metrics_of("torchmetrics", data_of(3, True), "bce", names=(name,))
    given = {"num_labels": 3} | ({} if name.startswith("Multi") else {"task": "multilabel"})
    expected = library(name)(**given)(outputs.sigmoid(), targets.long())
    assert over(metric, outputs, targets, cut) == pytest.approx(float(expected), rel=1e-5)


@with_library
def test_the_library_on_one_label_and_on_numbers() -> None:
    outputs, targets = labels(1)
    (metric,) = metrics_of("torchmetrics", data_of(1, True), "bce", names=("F1Score",))
    expected = library("BinaryF1Score")()(outputs[:, 0].sigmoid(), targets[:, 0].long())
    assert over(metric, outputs, targets, "ragged") == pytest.approx(float(expected), rel=1e-5)
    mean, r2 = metrics_of("torchmetrics", data_of(1), "mse", names=("MeanSquaredError", "R2Score"))
    assert (mean.higher_is_better, r2.higher_is_better) == (False, True)
    expected = (outputs[:, 0] - targets[:, 0]).square().mean()
    assert over(mean, outputs, targets[:, 0], "ragged") == pytest.approx(float(expected), rel=1e-5)
    expected = library("R2Score")()(outputs[:, 0], targets[:, 0])
    assert over(r2, outputs, targets[:, 0], "ragged") == pytest.approx(float(expected), rel=1e-5)


@with_library
def test_ours_agree_with_the_library() -> None:
    outputs, targets = labels()
    outputs, targets = outputs[:, :3], targets[:, :3]
    ours = metrics_of("average_precision", data_of(3, True), "bce")
    theirs = metrics_of("torchmetrics", data_of(3, True), "bce", names=("MultilabelAveragePrecision",))
    assert over(ours[0], outputs, targets) == pytest.approx(over(theirs[0], outputs, targets), rel=1e-5)
    scores, wanted = classes()
    expected = library("MulticlassAccuracy")(num_classes=CLASSES, average="micro")(scores, wanted)
    assert over(metrics_of("top1", data_of())[0], scores, wanted) == pytest.approx(float(expected), rel=1e-6)


@with_library
def test_the_average_over_classes_is_chosen() -> None:
    outputs, targets = classes()
    default, macro = (
        over(metrics_of("torchmetrics", data_of(), names=("F1Score",), average=average)[0], outputs, targets)
        for average in (None, "macro")
    )
    expected = library("MulticlassF1Score")(num_classes=CLASSES, average="macro")(outputs, targets)
    assert macro == pytest.approx(float(expected), rel=1e-6) != default


LIBRARY_REFUSES = {
    "unknown": ("F1score", "unknown name 'F1score'; did you mean F1Score"),
    "several numbers": ("ConfusionMatrix", "ConfusionMatrix does not fit this data .it gives several numbers, not one"),
    "numbers for classes": ("MeanSquaredError", "MeanSquaredError does not fit this data"),
    "other arguments": ("PrecisionAtFixedRecall", "PrecisionAtFixedRecall does not fit this data"),
    "pictures": ("StructuralSimilarityIndexMeasure", "unknown name"),
}


@with_library
@pytest.mark.parametrize("case", LIBRARY_REFUSES)
def test_the_library_refuses(case: str) -> None:
    name, text = LIBRARY_REFUSES[case]
    with pytest.raises(ConfigError, match=rf"metrics\.torchmetrics\.names: {text}"):
        metrics_of("torchmetrics", data_of(), names=("F1Score", name))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"not installed; pip install 'trainer4090\[torchmetrics\]'"):
        metrics_of("torchmetrics", data_of())
