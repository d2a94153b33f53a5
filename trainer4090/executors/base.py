"""What every executor offers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainer4090.executors.tensors import map_tensors
from trainer4090.records import Batch

Move = Callable[[Batch], tuple[Any, torch.Tensor]]
"""Batch -> (inputs as the data gives them, targets) on the device."""


@dataclass(frozen=True)
class Forward:
    """From a host batch to outputs on the device; training and evaluation share it."""

    module: torch.nn.Module
    prepare: Callable[[Any], Any]
    """Last step before the module: dtype, normalisation, memory format."""
    context: Callable[[], AbstractContextManager[Any]]
    """Autocast or nothing."""
    device: torch.device
    frozen: tuple[torch.nn.Module, ...] = ()
    """Submodules that are not trained: always in eval mode, so that BatchNorm keeps its statistics."""
    staging: Move | None = None
    """How training batches come to the device before they are due; None: as those of an evaluation do."""

    def set_training(self, training: bool) -> None:
        """Put the module in training or eval mode, all but what is frozen; nothing else may switch it."""
        self.module.train(training)
        for module in self.frozen:
            module.eval()

    def place(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """(prepared inputs, targets) on the device."""
        inputs, targets = self.moved(batch)
        return self.prepare(inputs), targets

    def moved(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """(inputs as the data gives them, targets) on the device; pinned host tensors are copied without waiting."""
        return map_tensors(self._moved, batch.inputs), self._moved(batch.targets)

    def staged(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """As `moved`, for training: what it returns holds until the batch after the next."""
        return self.moved(batch) if self.staging is None else self.staging(batch)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.device == self.device else tensor.to(self.device, non_blocking=True)

    def __call__(self, inputs: Any) -> torch.Tensor:
        """Outputs of the module for prepared inputs."""
        with self.context():
            return self.module(inputs)


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

    @property
    def forward(self) -> Forward:
        """From a batch to outputs, as training and evaluation both do it."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Eval mode, averaged parameters where there are some, and no gradients inside the block."""
        ...

    def step(self, batch: Batch, observe: bool) -> StepOutput:
        """Make one update; with `observe` also compute what only a log point needs."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, besides RNG and data: tensors and plain containers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        ...
