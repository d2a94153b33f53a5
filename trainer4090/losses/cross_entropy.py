"""Cross-entropy of class or token targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer4090.errors import ConfigError, Problem
from trainer4090.losses import LOSSES
from trainer4090.losses.weights import weights_beside
from trainer4090.records import Loss
from trainer4090.schema import NonNegativeFloat, Probability
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Fields of `loss=cross_entropy`."""

    label_smoothing: Probability = 0.0
    class_weights: tuple[NonNegativeFloat, ...] | None = None
    ignore_index: int = -100


def traits(config: Config, data: DataTraits) -> LossTraits:
    """What is known of the loss without building it.

    Raises:
        ConfigError: the data has one class only or several labels a sample, or another number of classes than there
            are weights.
    """
    problems = []
    if data.multi_label:
        given = "cross_entropy over samples with several labels"
        problems.append(Problem("loss", given, "it needs one class a target: use loss=bce"))
    elif data.num_classes < 2:
        remedy = (
            "softmax over one output is always 1: give two classes, loss=bce for one label, or loss=mse for a number"
        )
        problems.append(Problem("loss", f"cross_entropy over {data.num_classes} class", remedy))
    if config.class_weights is not None and len(config.class_weights) != data.num_classes:
        remedy = f"give one for each of the num_classes={data.num_classes} classes of the data, or null"
        problems.append(Problem("loss.class_weights", f"{len(config.class_weights)} weights", remedy))
    if problems:
        raise ConfigError(*problems)
    num_outputs = None if config.class_weights is None else len(config.class_weights)
    return LossTraits(config.ignore_index, num_outputs, outputs="class_logits", metrics={"accuracy": True})


@LOSSES.register("cross_entropy", Config, traits=traits)
def cross_entropy(config: Config, data: DataTraits) -> Loss:
    """Cross-entropy of classes or tokens, with label smoothing, class weights and an ignored target.

    Outputs (batch, classes) or (batch, length, classes), targets int64 (batch,) or (batch, length). The divisor is the
    number of targets that are not ignored, with class weights too; torch's weighted mean divides by their weights.
    """
    import numpy as np
    import torch
    from torch.nn import functional

    weights = weights_beside(config.class_weights)

    def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = outputs.flatten(0, -2)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return functional.cross_entropy(
            logits,
            targets.flatten(),
            weight=weights(logits),
            ignore_index=config.ignore_index,
            reduction="sum",
            label_smoothing=config.label_smoothing,
        )

    def count(targets: torch.Tensor) -> int:
        if targets.numel() and int(targets.min()) > config.ignore_index:
            return targets.numel()  # mostly none is ignored, and one reduction is half the work of a comparison
        # NumPy over the same memory: a third of the time of two torch operations on so few numbers.
        return int(np.count_nonzero(targets.numpy() != config.ignore_index))

    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        correct = (outputs.argmax(-1) == targets) & (targets != config.ignore_index)
        return correct.sum().float()

    return Loss(total, count, {"accuracy": accuracy})
