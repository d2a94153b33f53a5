"""Binary cross-entropy: each label is there or not, whatever the others are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer4090.errors import ConfigError, Problem
from trainer4090.losses import LOSSES
from trainer4090.losses.weights import weights_beside
from trainer4090.records import Loss
from trainer4090.schema import PositiveFloat, Probability
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Fields of `loss=bce`."""

    label_smoothing: Probability = 0.0
    pos_weight: tuple[PositiveFloat, ...] | None = None
    ignore_index: int = -100


def traits(config: Config, data: DataTraits) -> LossTraits:
    """What is known of the loss without building it.

    Raises:
        ConfigError: the data has another number of labels than there are weights.
    """
    num_outputs = None if config.pos_weight is None else len(config.pos_weight)
    if num_outputs is not None and num_outputs != data.num_classes:
        remedy = f"give one for each of the num_classes={data.num_classes} labels of the data, or null"
        raise ConfigError(Problem("loss.pos_weight", f"{num_outputs} weights", remedy))
    return LossTraits(config.ignore_index, num_outputs, outputs="label_logits", metrics={"accuracy": True})


@LOSSES.register("bce", Config, traits=traits)
def bce(config: Config, data: DataTraits) -> Loss:
    """Binary cross-entropy of labels, several or none a sample, with label smoothing and weights of positives.

    Float targets, 1 for each label that is there and 0 for the others, have as many numbers as the outputs
    (batch, labels), which are logits. Integer targets (batch,) or (batch, length) go with outputs (batch, classes) or
    (batch, length, classes) and are compared as one-hot vectors. One target is a sample or token with all its labels:
    its loss is the mean over them, so the divisor is what torch's mean divides by. Smoothing moves 0 and 1 by half of
    `label_smoothing` towards each other.

    Its accuracy is the share of labels that are right at a probability of 0.5, or for integer targets the share of
    targets whose class has the highest logit.

    Source: torch, `BCEWithLogitsLoss`; the smoothing is that of Keras, `BinaryCrossentropy`.
    """
    import numpy as np

    weights = weights_beside(config.pos_weight)

    def count(targets: torch.Tensor) -> int:
        # NumPy over the same memory is faster for so few numbers, as in cross_entropy.
        single = not targets.is_floating_point()
        return int(np.count_nonzero(targets.numpy() != config.ignore_index)) if single else len(targets)

    def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _total(outputs, targets, config, weights)

    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not targets.is_floating_point():
            return ((outputs.argmax(-1) == targets) & (targets != config.ignore_index)).sum().float()
        right = (outputs > 0) == (targets.reshape(outputs.shape) > 0.5)
        return right.reshape(len(right), -1).float().mean(1).sum()

    return Loss(total, count, {"accuracy": accuracy})


def _total(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    config: Config,
    weights: Callable[[torch.Tensor], torch.Tensor | None],
) -> torch.Tensor:
    import torch
    from torch.nn import functional

    logits = outputs if outputs.dtype == torch.float64 else outputs.float()
    valid = None if targets.is_floating_point() else targets != config.ignore_index
    if valid is None:
        wanted = targets.reshape(logits.shape)
    else:
        wanted = functional.one_hot(targets.where(valid, 0), logits.shape[-1])
    wanted = wanted.to(logits.dtype) * (1 - config.label_smoothing) + config.label_smoothing / 2
    losses = functional.binary_cross_entropy_with_logits(logits, wanted, pos_weight=weights(logits), reduction="none")
    if valid is None:
        return losses.reshape(len(losses), -1).mean(1).sum()
    return losses.mean(-1).where(valid, 0).sum()
