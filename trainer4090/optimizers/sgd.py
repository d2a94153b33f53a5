"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer4090.optimizers import OPTIMIZERS, Optimizer
from trainer4090.schema import NonNegativeFloat, PositiveFloat, Probability

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Fields of `torch.optim.SGD`."""

    lr: PositiveFloat = 0.1
    momentum: Probability = 0.9
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0005


@OPTIMIZERS.register("sgd", Config)
def sgd(config: Config) -> Optimizer:
    """Stochastic gradient descent with momentum."""

    def build(groups: list[dict[str, Any]], fused: bool) -> torch.optim.Optimizer:
        import torch

        optimizer = torch.optim.SGD(
            groups,
            lr=groups[0]["lr"],
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,
            fused=fused or None,
        )
        if fused and config.momentum > 0:
            # A fused kernel that skips the first update leaves the momentum buffer it was to fill uninitialised
            # (torch 2.11 to 2.14); from zeros the first update gives the gradient, as from an absent buffer.
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer

    return Optimizer(
        learning_rate=config.lr,
        weight_decay=config.weight_decay,
        build=build,
        elementwise=True,
        separable=True,
        states={"momentum_buffer": "signed"},
    )
