"""Squared error of numbers, or of class targets as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer4090.losses import LOSSES
from trainer4090.records import Loss
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """`loss=mse` has no fields."""


def traits(config: Config, data: DataTraits) -> LossTraits:
    """What is known of the loss without building it."""
    return LossTraits(outputs="numbers", metrics={"accuracy": True} if _has_classes(data) else {})


def _has_classes(data: DataTraits) -> bool:
    return data.num_classes > 1 and not data.multi_label


@LOSSES.register("mse", Config, traits=traits)
def mse(config: Config, data: DataTraits) -> Loss:
    """Squared error, a mean over the outputs of a target; class targets are compared as one-hot vectors.

    Integer targets (batch,) or (batch, length) go with outputs (batch, classes) or (batch, length, classes) and each is
    one target. Float targets have as many numbers as the outputs (batch, ...), and each sample is one target.
    Data of one class or none is taken as numbers and has no accuracy, as has data with several labels a sample.

    Source: L. Hui, M. Belkin, Evaluation of Neural Architectures Trained with Square Loss vs Cross-Entropy in
    Classification Tasks (2020), arXiv:2006.07322, without their rescaling for many classes.
    """
    import torch
    from torch.nn import functional

    def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        values = outputs if outputs.dtype == torch.float64 else outputs.float()
        if targets.is_floating_point():
            # Reshaped, because (batch, 1) minus (batch,) would be (batch, batch).
            return (values - targets.reshape(values.shape)).square().reshape(len(values), -1).mean(1).sum()
        return (values - functional.one_hot(targets, values.shape[-1])).square().mean(-1).sum()

    def count(targets: torch.Tensor) -> int:
        return len(targets) if targets.is_floating_point() else targets.numel()

    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        classes = targets.reshape(outputs.shape).argmax(-1) if targets.is_floating_point() else targets
        return (outputs.argmax(-1) == classes).sum().float()

    return Loss(total, count, {"accuracy": accuracy} if _has_classes(data) else {})
