"""The update made inside backward: a parameter is stepped, and its gradient freed, as soon as it has all of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, final

import torch

from trainer4090.errors import ConfigError, Problem
from trainer4090.executors.base import StepOutput
from trainer4090.executors.local import LocalExecutor
from trainer4090.executors.update import PlainUpdate
from trainer4090.records import Batch, Loss


@final
class ParameterSteps:
    """Steps an optimizer for one parameter at a time, from hooks that backward calls.

    The optimizer stays one object with its groups and its state, so a checkpoint file does not show how it was stepped.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Hook every parameter of `optimizer`; its steps must be separable (see `Optimizer.separable`)."""
        self._optimizer = optimizer
        # Indices, since loading a state puts other group objects in the place of these.
        self._groups = {each: index for index, group in enumerate(optimizer.param_groups) for each in group["params"]}
        self._stepped: set[torch.Tensor] = set()
        self._norms: dict[torch.Tensor, torch.Tensor] | None = None
        for parameter in self._groups:
            # A tied parameter has one accumulation too: the hook comes after the last use has added its share.
            parameter.register_post_accumulate_grad_hook(self._step)

    def begin(self, observe: bool) -> None:
        """Expect one backward; `observe`: it also has to leave the norms of the gradients."""
        self._stepped.clear()
        self._norms = {} if observe else None

    def _step(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if self._norms is not None:
            self._norms[parameter] = torch._foreach_norm([gradient])[0]
        whole, self._optimizer.param_groups = self._optimizer.param_groups, self._alone(parameter)
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
        parameter.grad = None
        self._stepped.add(parameter)

    def _alone(self, parameter: torch.Tensor) -> list[dict[str, Any]]:
        return [{**self._optimizer.param_groups[self._groups[parameter]], "params": [parameter]}]

    def norm(self) -> torch.Tensor | None:
        """0-dim global 2-norm of the gradients of the last backward, None when they were not observed."""
        if self._norms is None:
            return None
        # In the optimizer's order: the order of backward is another one, and would round otherwise.
        norms = [self._norms[parameter] for parameter in self._groups]
        return torch.linalg.vector_norm(torch.stack(norms))

    def missing(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Names of those trained parameters that the last backward did not step."""
        return [name for name, parameter in named if parameter in self._groups and parameter not in self._stepped]


@final
class InBackwardExecutor:
    """Runs updates in this process, one micro-batch each; all but the update itself is the local executor's."""

    def __init__(self, local: LocalExecutor, loss: Loss, optimizer: torch.optim.Optimizer, update: PlainUpdate) -> None:
        """`optimizer` and `update` are those that `local` was made with, and that it saves and loads."""
        self.forward = local.forward
        self.average = local.average
        self._local = local
        self._loss = loss
        self._update = update
        self._steps = ParameterSteps(optimizer)
        self._checked = False

    def step(self, batch: Batch, observe: bool) -> StepOutput:
        """Make one update from all samples of `batch`, which are one micro-batch.

        Raises:
            ConfigError: a trained parameter gets no gradient (looked for at the first update).
        """
        inputs, targets = self.forward.staged(batch)
        inputs = self.forward.prepare(inputs)
        divisor = max(batch.num_targets, 1)
        total = self._loss.total(self.forward(inputs), targets)
        self._update.set_rates()
        self._steps.begin(observe)
        total.backward(self._update.seed(total, divisor))
        self._require_steps()
        return self._update.finish((total.detach(),), divisor, self._steps.norm())

    def _require_steps(self) -> None:
        if self._checked:
            return
        self._checked = True
        missing = self._steps.missing(self.forward.module.named_parameters())
        if missing:
            text = f"the loss does not depend on {', '.join(missing)}"
            raise ConfigError(Problem("model", text, "use these parameters in the forward, or remove them"))

    def evaluating(self) -> AbstractContextManager[None]:
        """Eval mode, averaged parameters where there are some, and no gradients inside the block."""
        return self._local.evaluating()

    def state_dict(self) -> dict[str, Any]:
        """As the local executor's: a run may go on with its gradients whole."""
        return self._local.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; tensors are copied to where the model is."""
        self._local.load_state_dict(state)
