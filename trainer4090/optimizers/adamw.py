"""Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer4090.optimizers import OPTIMIZERS, Optimizer
from trainer4090.schema import NonNegativeFloat, PositiveFloat, Probability

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Fields of `torch.optim.AdamW`."""

    lr: PositiveFloat = 0.001
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01


@OPTIMIZERS.register("adamw", Config)
def adamw(config: Config) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    def build(groups: list[dict[str, Any]], fused: bool) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(groups, lr=groups[0]["lr"], betas=config.betas, eps=config.eps, fused=fused or None)

    return Optimizer(
        learning_rate=config.lr,
        weight_decay=config.weight_decay,
        build=build,
        elementwise=True,
        separable=True,
        states={"exp_avg": "signed", "exp_avg_sq": "unsigned"},
    )
