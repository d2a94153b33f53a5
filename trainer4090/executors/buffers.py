"""Buffers that forwards move, kept equal on all ranks: running statistics and counters of BatchNorm."""

from __future__ import annotations

from typing import final

import torch

from trainer4090.ranks import Ranks


@final
class SharedBuffers:
    """After every update a buffer is the mean over ranks, and a counter what all ranks together have counted.

    So any rank can evaluate and save, and a resume with another number of ranks goes on from the same numbers. In fp64
    the mean of equal values is that value, so buffers that nobody moves stay as they are.
    """

    def __init__(self, module: torch.nn.Module, ranks: Ranks) -> None:
        """All buffers that a checkpoint file keeps."""
        kept = module.state_dict(keep_vars=True)
        buffers = [buffer for name, buffer in module.named_buffers() if name in kept and buffer.numel()]
        self._means = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._counters = [buffer for buffer in buffers if buffer.dtype == torch.int64]
        self._ranks = ranks
        self._before: torch.Tensor | None = None

    @torch.no_grad()
    def remember(self) -> None:
        """Note the counters of all ranks, which are equal, before an update moves them."""
        if self._counters:
            self._before = torch.cat([counter.flatten() for counter in self._counters])

    @torch.no_grad()
    def exchange(self) -> None:
        """Make the buffers equal after an update."""
        parts = [torch.cat([buffer.double().flatten() for buffer in self._means])] if self._means else []
        if self._before is not None:
            counted = torch.cat([counter.flatten() for counter in self._counters]) - self._before
            parts.append(counted.double())
        if not parts:
            return
        flat = torch.cat(parts)
        self._ranks.add_up(flat)
        num_means = sum(buffer.numel() for buffer in self._means)
        _spread(flat[:num_means] / self._ranks.size, self._means)
        if self._before is not None:
            _spread(flat[num_means:].to(torch.int64) + self._before, self._counters)


def _spread(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])
