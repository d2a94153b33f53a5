"""One process, one device: forward and backward of every micro-batch, then one update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

import torch

from trainer4090.errors import ConfigError, Problem
from trainer4090.executors.average import Average
from trainer4090.executors.base import Forward, StepOutput
from trainer4090.executors.portable import changed, changed_optimizer, joined, names_in, with_own_options
from trainer4090.executors.tensors import map_tensors
from trainer4090.executors.update import Update
from trainer4090.records import Batch, Loss, NameMap

BARE = joined(())
"""For a module in the shapes of the bare model."""


@final
class LocalExecutor:
    """Runs updates in this process."""

    def __init__(
        self,
        forward: Forward,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        update: Update,
        average: Average | None,
        micro_batch: int,
        clip_norm: float | None,
        name_map: NameMap = BARE,
    ) -> None:
        """`optimizer` holds exactly the parameters that are trained; `micro_batch` counts samples a forward.

        `name_map`: between the state of this run and that of the bare model.
        """
        self.forward = forward
        self.average = average
        self._loss = loss
        self._optimizer = optimizer
        self._update = update
        self._micro_batch = micro_batch
        self._clip_norm = clip_norm
        self._name_map = name_map
        self._parameters = [parameter for parameter in forward.module.parameters() if parameter.requires_grad]
        self._checked = False

    def step(self, batch: Batch, observe: bool) -> StepOutput:
        """Make one update from all samples of `batch`.

        Raises:
            ConfigError: a trained parameter gets no gradient (looked for at the first update).
        """
        inputs, targets = self.forward.staged(batch)
        num_targets = max(batch.num_targets, 1)
        return self.update(inputs, targets, num_targets, num_targets, observe)

    def update(
        self, inputs: Any, targets: torch.Tensor, num_targets: int, divisor: int | torch.Tensor, observe: bool
    ) -> StepOutput:
        """Make one update from tensors on the device; `divisor` is `num_targets`, or that number on the device."""
        self.release_gradients()
        inputs = self.forward.prepare(inputs)
        loss_sums = []
        for micro_inputs, micro_targets in micro_batches(inputs, targets, self._micro_batch):
            total = self._loss.total(self.forward(micro_inputs), micro_targets)
            total.backward(self._update.seed(total, divisor))
            loss_sums.append(total.detach())
        return self.finish(tuple(loss_sums), num_targets, observe)

    def finish(self, loss_sums: tuple[torch.Tensor, ...], num_targets: int, observe: bool) -> StepOutput:
        """Make an update from the gradients that lie in the parameters: the second half of `update`."""
        gradients = self._gradients()
        self._update.unscale(gradients)
        grad_norm = self._clip(gradients) if observe or self._clip_norm is not None else None
        return self._update.apply(loss_sums, num_targets, grad_norm)

    def release_gradients(self) -> None:
        """Forget the gradients of the update before, and with them their memory."""
        self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self) -> list[torch.Tensor]:
        if not self._checked:
            self._checked = True
            self._require_gradients()
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def _require_gradients(self) -> None:
        named = self.forward.module.named_parameters()
        missing = [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]
        if missing:
            text = f"the loss does not depend on {', '.join(missing)}"
            raise ConfigError(Problem("model", text, "use these parameters in the forward, or remove them"))

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        # What get_total_norm does for one device and dtype, without its search for others.
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if self._clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        return norm

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode, averaged parameters where there are some, and no gradients inside the block."""
        was_training = self.forward.module.training
        self.forward.set_training(False)
        try:
            with torch.no_grad(), nullcontext() if self.average is None else self.average.swapped_in():
                yield
        finally:
            self.forward.set_training(was_training)

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by the bare model's names and in its shapes, optimizer, counters and average."""
        module, to_file = self.forward.module, self._name_map.to_file
        names = names_in(self._optimizer, module)
        return {
            "model": changed(module.state_dict(), to_file),
            "optimizer": changed_optimizer(self._optimizer.state_dict(), names, to_file),
            "update": self._update.state_dict(),
            "average": None if self.average is None else changed(self.average.state_dict(), to_file),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; tensors are copied to where the model is."""
        module, from_file = self.forward.module, self._name_map.from_file
        names = names_in(self._optimizer, module)
        module.load_state_dict(changed(state["model"], from_file))
        saved = changed_optimizer(state["optimizer"], names, from_file)
        self._optimizer.load_state_dict(with_own_options(self._optimizer, saved))
        self._update.load_state_dict(state["update"])
        if self.average is not None:  # a run that had none starts one from its present parameters
            saved = state["average"]
            averages = dict(module.named_parameters()) if saved is None else changed(saved, from_file)
            self.average.load_state_dict(averages)


def micro_batches(inputs: Any, targets: torch.Tensor, size: int) -> Iterator[tuple[Any, torch.Tensor]]:
    """Views of at most `size` samples each, in order."""
    if len(targets) <= size:
        yield inputs, targets
        return
    for start in range(0, len(targets), size):
        micro_inputs = map_tensors(lambda tensor, start=start: tensor[start : start + size], inputs)
        yield micro_inputs, targets[start : start + size]
