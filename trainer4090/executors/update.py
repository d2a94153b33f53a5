"""The end of an update: from accumulated gradients to moved parameters, with and without loss scaling.

All variants have the same shape, so the executor has no `if`. `PlainUpdate` counts on the host, `CountedUpdate` on the
device, for an update that is captured once and replayed. `ScaledUpdate` keeps the scale there too: whether an update
overflowed is never read back, yet a skipped one moves neither parameters, nor schedule, nor average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import torch

from trainer4090.executors.average import Average
from trainer4090.executors.base import StepOutput
from trainer4090.precision import LossScale


class Update(Protocol):
    """Scaling of a loss and the step that undoes it."""

    def seed(self, total: torch.Tensor, divisor: int | torch.Tensor) -> torch.Tensor:
        """Gradient that backward starts with at `total`, 0-dim of its dtype: 1 / divisor, times the scale.

        `divisor` may lie on the device, 0-dim.

        Bit for bit what the division (and the scaling) would hand back as nodes of the graph, without the nodes.
        """
        ...

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide the scale out of the gradients, in place, once an update."""
        ...

    def apply(
        self, loss_sums: tuple[torch.Tensor, ...], num_targets: int, grad_norm: torch.Tensor | None
    ) -> StepOutput:
        """Move parameters, schedule and average; what was observed on the way."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Counters and scale."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counters and scale."""
        ...


def set_rates(optimizer: torch.optim.Optimizer, rate: torch.Tensor | float) -> None:
    """Give every parameter group its share of `rate`; a rate on the device is not read back."""
    for group in optimizer.param_groups:
        scale = group.get("lr_scale", 1.0)
        group["lr"] = rate if scale == 1.0 else rate * scale


@final
class PlainUpdate:
    """Every update is applied."""

    def __init__(self, optimizer: torch.optim.Optimizer, rates: Sequence[float], average: Average | None) -> None:
        """`rates`: learning rate of each applied update of the run."""
        self._optimizer = optimizer
        self._rates = rates
        self._average = average
        self._applied = 0
        self._seeds: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def seed(self, total: torch.Tensor, divisor: int | torch.Tensor) -> torch.Tensor:
        """1 / divisor, made once a divisor."""
        assert isinstance(divisor, int)
        place = (divisor, total.dtype)
        if place not in self._seeds:
            self._seeds[place] = torch.ones((), dtype=total.dtype, device=total.device) / divisor
        return self._seeds[place]

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Nothing to undo."""

    def apply(
        self, loss_sums: tuple[torch.Tensor, ...], num_targets: int, grad_norm: torch.Tensor | None
    ) -> StepOutput:
        """Move parameters, schedule and average."""
        self.set_rates()
        self._optimizer.step()
        return self.finish(loss_sums, num_targets, grad_norm)

    def set_rates(self) -> None:
        """Give the optimizer the rates of the coming update: the first half of `apply`, for who steps by himself."""
        set_rates(self._optimizer, self._rate)

    def finish(
        self, loss_sums: tuple[torch.Tensor, ...], num_targets: int, grad_norm: torch.Tensor | None
    ) -> StepOutput:
        """Move schedule and average after the parameters: the second half of `apply`."""
        rate = self._rate
        if self._average is not None:
            self._average.update(applied=None)
        self._applied += 1
        return StepOutput(loss_sums, num_targets, learning_rate=rate, grad_norm=grad_norm)

    @property
    def _rate(self) -> float:
        return self._rates[min(self._applied, len(self._rates) - 1)]

    def state_dict(self) -> dict[str, Any]:
        """The counter of applied updates."""
        return {"applied": self._applied}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved counter."""
        self._applied = int(state["applied"])


@final
class _Rates:
    """Learning rate of each applied update, on the device, and the counter that looks it up."""

    def __init__(self, rates: Sequence[float], device: torch.device) -> None:
        self.applied = torch.zeros((), dtype=torch.int64, device=device)
        self._rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self._last = torch.tensor(len(rates) - 1, device=device)

    def present(self) -> torch.Tensor:
        """0-dim; the rate of the update that is being made."""
        # `rates[index]` would read the index back to the host: a synchronisation.
        return self._rates.take(torch.minimum(self.applied, self._last))


@final
class CountedUpdate:
    """Every update is applied; counter and learning rate are on the device."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, rates: Sequence[float], average: Average | None, device: torch.device
    ) -> None:
        """`optimizer`: one that takes its learning rate as a tensor."""
        self._optimizer = optimizer
        self._rates = _Rates(rates, device)
        self._average = average

    def seed(self, total: torch.Tensor, divisor: int | torch.Tensor) -> torch.Tensor:
        """1 / divisor."""
        return torch.ones((), dtype=total.dtype, device=total.device) / divisor

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Nothing to undo."""

    def apply(
        self, loss_sums: tuple[torch.Tensor, ...], num_targets: int, grad_norm: torch.Tensor | None
    ) -> StepOutput:
        """Move parameters, schedule and average."""
        rate = self._rates.present()
        set_rates(self._optimizer, rate)
        self._optimizer.step()
        if self._average is not None:
            self._average.update(applied=None)
        self._rates.applied += 1
        return StepOutput(loss_sums, num_targets, learning_rate=rate, grad_norm=grad_norm)

    def state_dict(self) -> dict[str, Any]:
        """The counter of applied updates."""
        return {"applied": int(self._rates.applied)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved counter."""
        self._rates.applied.fill_(int(state["applied"]))


@final
class ScaledUpdate:
    """An update whose gradients overflow is skipped, and the scale halved."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rates: Sequence[float],
        average: Average | None,
        loss_scale: LossScale,
        device: torch.device,
    ) -> None:
        """`optimizer`: a fused one, whose kernels read `found_inf` on the device."""
        self._optimizer = optimizer
        self._rates = _Rates(rates, device)
        self._average = average
        self._floor = loss_scale.floor
        self._growth_interval = loss_scale.growth_interval
        self._scale = torch.full((), loss_scale.initial, dtype=torch.float32, device=device)
        self._good_updates = torch.zeros((), dtype=torch.int32, device=device)
        self._found_inf = torch.zeros((), dtype=torch.float32, device=device)

    def seed(self, total: torch.Tensor, divisor: int | torch.Tensor) -> torch.Tensor:
        """Scale / divisor."""
        return self._scale.to(total.dtype) / divisor

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide the scale out and remember whether any gradient is not finite."""
        self._found_inf.zero_()
        inverse = self._scale.double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found_inf, inverse)

    def apply(
        self, loss_sums: tuple[torch.Tensor, ...], num_targets: int, grad_norm: torch.Tensor | None
    ) -> StepOutput:
        """Move parameters, schedule and average unless a gradient overflowed; adapt the scale."""
        rate = self._rates.present()
        set_rates(self._optimizer, rate)
        self._optimizer.grad_scale = None  # type: ignore[attr-defined]
        self._optimizer.found_inf = self._found_inf  # type: ignore[attr-defined]
        self._optimizer.step()
        applied = 1 - self._found_inf
        if self._average is not None:
            self._average.update(applied)
        self._rates.applied += applied.to(torch.int64)
        diverged = (self._scale <= self._floor) & (self._found_inf > 0)
        used_scale = self._scale.clone()
        torch._amp_update_scale_(self._scale, self._good_updates, self._found_inf, 2.0, 0.5, self._growth_interval)
        self._scale.clamp_(min=self._floor)
        num_applied = self._rates.applied.clone()
        return StepOutput(loss_sums, num_targets, rate, grad_norm, used_scale, num_applied, diverged)

    def state_dict(self) -> dict[str, Any]:
        """Scale, good updates since it last changed, and the counter of applied updates."""
        return {
            "applied": int(self._rates.applied),
            "scale": float(self._scale),
            "good_updates": int(self._good_updates),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counters; a state without a scale (another precision's) keeps the initial one."""
        self._rates.applied.fill_(int(state["applied"]))
        if "scale" in state:
            self._scale.fill_(state["scale"])
            self._good_updates.fill_(state["good_updates"])
