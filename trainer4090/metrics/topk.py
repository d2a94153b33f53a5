"""Share of targets whose class is among the k highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trainer4090.errors import ConfigError, Problem
from trainer4090.metrics import METRICS, Mean, Metric, Sums, is_valid, needs_classes
from trainer4090.schema import PositiveInt
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config:
    """Fields of `metrics=topk`."""

    k: tuple[PositiveInt, ...] = (1, 5)


@dataclass(frozen=True)
class Fixed:
    """`metrics=top1` and `metrics=top5` have no fields."""


@METRICS.register("topk", Config)
def topk(config: Config, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Share of targets whose class is among the k highest scores, for each of metrics.topk.k: eval/top3."""
    return _metrics(config.k, "metrics.topk.k", data, loss)


@METRICS.register("top1", Fixed)
def top1(config: Fixed, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Share of targets whose class has the highest score: what losses of classes bring as accuracy."""
    return _metrics((1,), "metrics", data, loss)


@METRICS.register("top5", Fixed)
def top5(config: Fixed, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Share of targets whose class is among the five highest scores."""
    return _metrics((5,), "metrics", data, loss)


def _metrics(ks: tuple[int, ...], key: str, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    problems = needs_classes(f"top{ks[0]}" if ks else "topk", data)
    if not ks:
        problems.append(Problem(key, "[] measures nothing", "give the numbers: [1,5]"))
    for k in ks if not problems else ():
        if k >= data.num_classes:
            remedy = f"all {data.num_classes} classes are among them: at most k={data.num_classes - 1} says something"
            problems.append(Problem(key, f"top{k} over {data.num_classes} classes", remedy))
    if problems:
        raise ConfigError(*problems)
    return tuple(Metric(f"top{k}", True, partial(Mean, _hits(k, loss.ignore_index))) for k in ks)


def _hits(k: int, ignore_index: int | None) -> Sums:
    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        valid = is_valid(targets, ignore_index)
        return (valid & (rank(outputs, targets.where(valid, 0)) < k)).sum(), valid.sum()

    return sums


def rank(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Number of classes before the target's, int64 (batch, ...), for outputs (batch, ..., classes).

    Of equal scores the lower class comes first, as in argmax, so that ties give the same on every device, where topk's
    order is not defined. A target whose score is NaN comes last.
    """
    import torch

    score = outputs.gather(-1, targets.unsqueeze(-1))
    earlier = torch.arange(outputs.shape[-1], device=outputs.device) < targets.unsqueeze(-1)
    return ((outputs <= score).logical_not() | ((outputs == score) & earlier)).sum(-1)
