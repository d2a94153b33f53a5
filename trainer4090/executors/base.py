"""What every executor offers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trainer4090.records import Batch

if TYPE_CHECKING:
    from trainer4090.executors.average import Average
    from trainer4090.executors.local import Forward


@dataclass(frozen=True)
class StepOutput:
    """Results of one update, still on the device: reading one is a synchronisation, so the loop reads late."""

    loss_sums: tuple[torch.Tensor, ...]
    """0-dim sum over targets, one a micro-batch."""
    num_targets: int
    """Valid targets of the update, at least 1."""
    learning_rate: torch.Tensor | float
    """Rate that this update was made with."""
    grad_norm: torch.Tensor | None = None
    """0-dim global 2-norm before clipping, without the loss scale; present when clipped or observed."""
    loss_scale: torch.Tensor | None = None
    """0-dim; only under loss scaling, as the following three."""
    applied: torch.Tensor | None = None
    """0-dim int64; updates that were applied so far."""
    diverged: torch.Tensor | None = None
    """0-dim bool; an overflow happened although the scale is at its floor."""

    @property
    def loss(self) -> torch.Tensor:
        """0-dim; sum over targets divided by their number. Made where it is read, which is not after every update."""
        means = [total / self.num_targets for total in self.loss_sums]
        return means[0] if len(means) == 1 else torch.stack(means).sum()


class Executor(Protocol):
    """Owns one update: micro-batches, scaling, clipping, optimizer, schedule, average."""

    forward: Forward
    average: Average | None

    def step(self, batch: Batch, observe: bool) -> StepOutput:
        """Make one update; with `observe` also compute what only a log point needs."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Eval mode, averaged parameters where there are some, and no gradients inside the block."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, besides RNG and data: tensors and plain containers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        ...
