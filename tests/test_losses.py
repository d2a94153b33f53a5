"""Losses are sums: whoever splits a batch, the sum over the parts is the sum over the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from trainer4090.errors import ConfigError
from trainer4090.losses import LOSSES, bce, cross_entropy, mse
from trainer4090.records import Loss
from trainer4090.traits import DataTraits

CLASSES = 5
WEIGHTS = (0.0, 1.0, 2.0, 0.5, 3.0)


def traits(num_classes: int = CLASSES, multi_label: bool = False) -> DataTraits:
    return DataTraits("images", (1, 2, 2), num_classes, 10, 10, 1, in_memory=True, multi_label=multi_label)


def entropy(num_classes: int = CLASSES, **fields: Any) -> Loss:
    return LOSSES.get("cross_entropy").build(cross_entropy.Config(**fields), traits(num_classes))


def squares(num_classes: int = CLASSES) -> Loss:
    return LOSSES.get("mse").build(mse.Config(), traits(num_classes))


def binary(num_labels: int = CLASSES, **fields: Any) -> Loss:
    return LOSSES.get("bce").build(bce.Config(**fields), traits(num_labels, multi_label=True))


def case(*shape: int, ignored: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 outputs (*shape, classes) and targets, every third of them ignored if asked."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(*shape, CLASSES, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, CLASSES, shape, generator=generator)
    if ignored is not None:
        targets.view(-1)[::3] = ignored
    return outputs, targets


def by_hand(outputs: torch.Tensor, targets: torch.Tensor, smoothing: float, weights: tuple[float, ...]) -> float:
    """The definition, one target after the other; -100 is ignored."""
    total = 0.0
    for row, target in zip(outputs.reshape(-1, CLASSES).log_softmax(-1).tolist(), targets.flatten(), strict=True):
        if target != -100:
            spread = sum(weight * value for weight, value in zip(weights, row, strict=True)) / CLASSES
            total -= (1 - smoothing) * weights[target] * row[target] + smoothing * spread
    return total


ONES = (1.0,) * CLASSES
ENTROPIES = [
    pytest.param((7,), None, 0.0, None, id="classes"),
    pytest.param((3, 4), None, 0.0, None, id="tokens"),
    pytest.param((3, 4), -100, 0.0, None, id="ignored"),
    pytest.param((7,), -100, 0.1, None, id="smoothed"),
    pytest.param((7,), None, 0.0, WEIGHTS, id="weighted"),
    pytest.param((3, 4), -100, 0.2, WEIGHTS, id="everything"),
]


@pytest.mark.parametrize(("shape", "ignored", "smoothing", "weights"), ENTROPIES)
def test_cross_entropy_is_its_definition(shape: tuple[int, ...], ignored: int | None, smoothing: float, weights):
    outputs, targets = case(*shape, ignored=ignored)
    loss = entropy(label_smoothing=smoothing, class_weights=weights)
    total = loss.total(outputs, targets)
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(by_hand(outputs, targets, smoothing, weights or ONES), rel=1e-12)
    assert loss.count(targets) == sum(target != -100 for target in targets.flatten().tolist())
    correct = (outputs.argmax(-1) == targets).sum()
    assert loss.metrics["accuracy"](outputs, targets) == correct


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_sums_are_in_fp32(dtype: torch.dtype):
    """70,000 is beyond fp16, and bf16 cannot count to 300."""
    outputs, targets = torch.zeros(70_000, CLASSES, dtype=dtype), torch.zeros(70_000, dtype=torch.int64)
    for loss, each in ((entropy(class_weights=(1.0,) * CLASSES), torch.tensor(5.0).log()), (squares(), 1 / CLASSES)):
        total = loss.total(outputs, targets)
        assert total.dtype == torch.float32
        assert total.item() == pytest.approx(70_000 * float(each), rel=1e-4)
        assert loss.metrics["accuracy"](outputs, targets) == 70_000


@pytest.mark.parametrize("fields", [{}, {"label_smoothing": 0.1}, {"class_weights": WEIGHTS}], ids=str)
def test_fully_masked_part_adds_nothing(fields: dict[str, Any]):
    outputs = torch.randn(4, CLASSES, requires_grad=True)
    targets = torch.full((4,), -100)
    loss = entropy(**fields)
    total = loss.total(outputs, targets)
    total.backward()
    assert total.item() == 0.0
    assert loss.count(targets) == 0
    assert outputs.grad is not None
    assert torch.equal(outputs.grad, torch.zeros_like(outputs))
    assert functional.cross_entropy(outputs, targets).isnan(), "the mean that this contract avoids"


def test_ignored_class_counts_nowhere():
    """An ignored index may be a class, such as the token of padding; predicting it is not correct."""
    outputs, targets = torch.eye(CLASSES), torch.arange(CLASSES)
    loss = entropy(ignore_index=0)
    assert loss.count(targets) == 4
    assert loss.metrics["accuracy"](outputs, targets) == 4


def gradient(parts: list[tuple[torch.Tensor, torch.Tensor]], loss: Loss, divide: Callable[[list[int], int], float]):
    """Gradient at weight 0 of `outputs + weight`, each part divided by `divide(counts, part)`."""
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    counts = [loss.count(targets) for _, targets in parts]
    for number, (outputs, targets) in enumerate(parts):
        ramp = torch.arange(1, outputs.shape[-1] + 1, dtype=torch.float64)
        (loss.total(outputs + weight * ramp, targets) / divide(counts, number)).backward()
    assert weight.grad is not None
    return weight.grad


def of_the_whole(counts: list[int], number: int) -> float:
    return sum(counts)


def mean_of_means(counts: list[int], number: int) -> float:
    return len(counts) * max(counts[number], 1)


def test_parts_weigh_by_their_targets():
    """B03: 8 tokens of gradient 1 and 2 tokens of gradient 6 give 2.0; a mean of means gives 3.5."""
    zeros = torch.zeros(8, 1, dtype=torch.float64)
    parts = [(zeros, torch.full((8, 1), -0.5)), (zeros[:2], torch.full((2, 1), -3.0))]
    assert gradient(parts, squares(1), of_the_whole) == pytest.approx(2.0, rel=1e-12)
    assert gradient(parts, squares(1), mean_of_means) == pytest.approx(3.5, rel=1e-12)


def test_split_batch_is_the_whole_batch():
    """Ragged micro-batches, one of them fully masked."""
    outputs, targets = case(9, 4, ignored=-100)
    targets[4:6] = -100
    loss = entropy(label_smoothing=0.1, class_weights=WEIGHTS)
    whole = gradient([(outputs, targets)], loss, of_the_whole)
    parts = list(zip(outputs.split([4, 2, 3]), targets.split([4, 2, 3]), strict=True))
    assert loss.count(parts[1][1]) == 0
    assert gradient(parts, loss, of_the_whole) == pytest.approx(whole.item(), rel=1e-12)
    assert gradient(parts, loss, mean_of_means) != pytest.approx(whole.item(), rel=1e-3)


REFUSED = [
    pytest.param(
        CLASSES, {"class_weights": (1.0, 2.0)}, r"loss\.class_weights: 2 weights; .*num_classes=5", id="weights"
    ),
    pytest.param(1, {}, "loss: cross_entropy over 1 class; .*loss=mse", id="one class"),
]


@pytest.mark.parametrize(("num_classes", "fields", "text"), REFUSED)
def test_refused(num_classes: int, fields: dict[str, Any], text: str):
    with pytest.raises(ConfigError, match=text):
        cross_entropy.traits(cross_entropy.Config(**fields), traits(num_classes))


def test_weights_are_placed_once(monkeypatch: pytest.MonkeyPatch):
    """A transfer a call would synchronise with the GPU; a fake tensor of a trace must not stay behind."""
    outputs, targets = case(4)
    loss = entropy(class_weights=WEIGHTS)
    with FakeTensorMode() as mode:
        loss.total(mode.from_tensor(outputs), mode.from_tensor(targets))
    expected = entropy(class_weights=WEIGHTS).total(outputs, targets)
    assert torch.equal(loss.total(outputs, targets), expected)
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("made again"))
    assert torch.equal(loss.total(outputs, targets), expected)


def test_squared_error_of_classes():
    outputs, targets = case(3, 4)
    loss = squares()
    expected = ((outputs - functional.one_hot(targets, CLASSES)) ** 2).sum() / CLASSES
    assert loss.total(outputs, targets).item() == pytest.approx(expected.item(), rel=1e-12)
    assert loss.count(targets) == 12
    assert loss.metrics["accuracy"](outputs, targets) == (outputs.argmax(-1) == targets).sum()


NUMBERS = [
    pytest.param((4, 1), (4,), id="scalar, targets without a dimension"),
    pytest.param((4,), (4,), id="scalar"),
    pytest.param((4, 3), (4, 3), id="vector"),
    pytest.param((4, 2, 3), (4, 2, 3), id="matrix"),
]


@pytest.mark.parametrize(("shape", "target_shape"), NUMBERS)
def test_squared_error_of_numbers(shape: tuple[int, ...], target_shape: tuple[int, ...]):
    outputs, targets = torch.randn(shape), torch.randn(target_shape)
    loss = squares(1)
    expected = 4 * (outputs.flatten() - targets.flatten()).square().mean()
    assert loss.total(outputs, targets).item() == pytest.approx(expected.item(), rel=1e-5)
    assert (loss.count(targets), dict(loss.metrics)) == (4, {})


def test_soft_targets_have_an_accuracy():
    outputs = torch.eye(CLASSES)
    assert squares().metrics["accuracy"](outputs, 0.5 * outputs) == CLASSES


def each_label(outputs: torch.Tensor, wanted: torch.Tensor, smoothing: float, weights: tuple[float, ...]) -> float:
    """The definition, one label after the other; a sample is a target, and its loss the mean over its labels."""
    total = 0.0
    for row, targets in zip(outputs.reshape(-1, CLASSES).tolist(), wanted.reshape(-1, CLASSES).tolist(), strict=True):
        for logit, target, weight in zip(row, targets, weights, strict=True):
            there = target * (1 - smoothing) + smoothing / 2
            yes, no = math.log1p(math.exp(-logit)), math.log1p(math.exp(logit))
            total += (weight * there * yes + (1 - there) * no) / CLASSES
    return total


BINARIES = [
    pytest.param(0.0, None, id="plain"),
    pytest.param(0.2, None, id="smoothed"),
    pytest.param(0.0, (1.0, 2.0, 3.0, 0.5, 1.0), id="weighted"),
    pytest.param(0.1, (1.0, 2.0, 3.0, 0.5, 1.0), id="both"),
]


@pytest.mark.parametrize(("smoothing", "weights"), BINARIES)
def test_binary_cross_entropy_is_its_definition(smoothing: float, weights: tuple[float, ...] | None):
    outputs, targets = case(7, ignored=-100)
    loss = binary(label_smoothing=smoothing, pos_weight=weights)
    wanted = (case(7)[0] > 0.5).float()
    expected = each_label(outputs, wanted, smoothing, weights or ONES)
    assert loss.total(outputs, wanted).item() == pytest.approx(expected, rel=1e-12)
    assert loss.count(wanted) == 7
    valid = targets != -100
    one_hot = functional.one_hot(targets[valid], CLASSES)
    expected = each_label(outputs[valid], one_hot, smoothing, weights or ONES)
    assert loss.total(outputs, targets).item() == pytest.approx(expected, rel=1e-12)
    assert loss.count(targets) == int(valid.sum()) == 4


def test_binary_cross_entropy_divides_as_torch_does():
    """A target is a sample with all its labels, so total / count is torch's mean over samples and labels."""
    outputs, wanted = case(9)[0], (case(9)[0] > 0).double()
    loss = binary()
    expected = functional.binary_cross_entropy_with_logits(outputs, wanted)
    assert loss.total(outputs, wanted) / loss.count(wanted) == pytest.approx(expected.item(), rel=1e-12)
    parts = zip(outputs.split([4, 2, 3]), wanted.split([4, 2, 3]), strict=True)
    assert sum(loss.total(*part) for part in parts) / 9 == pytest.approx(expected.item(), rel=1e-12)


def test_binary_cross_entropy_of_tokens_and_of_one_label():
    outputs, targets = case(3, 4, ignored=-100)
    loss, flat = binary(), (outputs.flatten(0, 1), targets.flatten())
    assert loss.total(outputs, targets).item() == pytest.approx(loss.total(*flat).item(), rel=1e-12)
    assert loss.count(targets) == 8
    logits, one = torch.tensor([[2.0], [-1.0]]), torch.tensor([1.0, 1.0])
    expected = math.log1p(math.exp(-2)) + math.log1p(math.exp(1))
    for wanted in (one, one[:, None]):
        assert binary(1).total(logits, wanted).item() == pytest.approx(expected, rel=1e-6)
        assert (binary(1).count(wanted), binary(1).metrics["accuracy"](logits, wanted)) == (2, 1)


def test_accuracy_of_labels_is_at_a_half():
    outputs = torch.tensor([[1.0, -1.0, 2.0, -3.0], [1.0, 1.0, 1.0, 1.0]])
    wanted = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert binary(4).metrics["accuracy"](outputs, wanted) == 3 / 4 + 1 / 4
    classes = torch.tensor([2, -100])
    assert binary(4).metrics["accuracy"](outputs, classes) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_binary_cross_entropy_is_in_fp32(dtype: torch.dtype):
    outputs, targets = torch.zeros(70_000, CLASSES, dtype=dtype), torch.zeros(70_000, CLASSES)
    total = binary().total(outputs, targets)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(70_000 * math.log(2), rel=1e-4)


def test_binary_cross_entropy_of_a_masked_part_adds_nothing():
    outputs, targets = torch.randn(4, CLASSES, requires_grad=True), torch.full((4,), -100)
    total = binary().total(outputs, targets)
    total.backward()
    assert (total.item(), binary().count(targets)) == (0.0, 0)
    assert outputs.grad is not None and not outputs.grad.any()


def test_which_losses_take_several_labels():
    with pytest.raises(ConfigError, match=r"loss: cross_entropy over samples with several labels; .*use loss=bce"):
        cross_entropy.traits(cross_entropy.Config(), traits(multi_label=True))
    with pytest.raises(ConfigError, match=r"loss\.pos_weight: 2 weights; give one for each of the num_classes=5"):
        bce.traits(bce.Config(pos_weight=(1.0, 2.0)), traits(multi_label=True))
    for num_labels, multi_label in ((1, True), (1, False), (CLASSES, True), (CLASSES, False)):  # B45: one is enough
        assert bce.traits(bce.Config(), traits(num_labels, multi_label)).metrics == {"accuracy": True}
    assert not LOSSES.get("mse").build(mse.Config(), traits(multi_label=True)).metrics
