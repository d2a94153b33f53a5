"""Exponential moving average of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class Average:
    """Averaged copies of a module's parameters, moved once an applied update; buffers are not averaged."""

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        """Start from the present parameters."""
        self._decay = decay
        self._parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
        self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self, applied: torch.Tensor | None) -> None:
        """Move by `1 - decay` towards the parameters; `applied` (0-dim, 0 or 1) holds a skipped update back."""
        averages, parameters = list(self._averages.values()), list(self._parameters.values())
        if applied is None:
            torch._foreach_lerp_(averages, parameters, 1 - self._decay)
            return
        distances = torch._foreach_sub(parameters, averages)
        torch._foreach_mul_(distances, applied * (1 - self._decay))
        torch._foreach_add_(averages, distances)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the module hold the averages inside the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        parameters, averages = list(self._parameters.values()), list(self._averages.values())
        kept = [parameter.clone() for parameter in parameters]
        torch._foreach_copy_(parameters, averages)
        torch._foreach_copy_(averages, kept)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Averages by parameter name."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over saved averages, placed as the parameters are."""
        for name, average in self._averages.items():
            average.copy_(state[name])
