"""Head and loss of a language model for a few tokens at a time, so that the logits of all never exist together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import torch


@dataclass(frozen=True)
class ChunkedHead:
    """A loss as a function of what the head takes, in place of its logits.

    Forward and backward of head and loss run chunk after chunk, while the sum is made: nothing is computed twice, and
    what is held until backward is the gradient of what the head takes and of its parameters. Each is a sum over chunks
    in the dtype of the parameter, as over micro-batches.
    """

    logits: Callable[[torch.Tensor], torch.Tensor]
    """The head: hidden states (tokens, width) -> logits (tokens, vocab_size)."""
    parameters: Sequence[torch.nn.Parameter]
    """The head's, as far as they are trained."""
    total: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(logits, targets) -> sum of the losses of targets, each of which depends on its own token's logits."""
    context: Callable[[], AbstractContextManager[Any]]
    """Autocast or nothing, around the head."""
    seed: Callable[[torch.Tensor], torch.Tensor]
    """The gradient that backward is expected to start with at a sum: in fp16 a gradient that begins with 1 would
    underflow, and one that begins with more than the loss scale could overflow where the whole would not."""
    chunk_tokens: int

    def __call__(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum over `targets` (batch, length), a 0-dim tensor, from `hidden` (batch, length, width)."""
        rows, wanted = hidden.detach().flatten(0, -2), targets.flatten()
        to_hidden = torch.empty_like(rows)
        to_parameters: list[torch.Tensor] = []
        totals: list[torch.Tensor] = []
        seed: torch.Tensor | None = None
        with self.context():  # one for all chunks: autocast then casts the weight once
            for begin in range(0, len(rows), self.chunk_tokens):
                chunk = slice(begin, begin + self.chunk_tokens)
                part = rows[chunk].requires_grad_()
                total = self.total(self.logits(part), wanted[chunk])
                seed = self.seed(total) if seed is None else seed
                of_part, *of_parameters = torch.autograd.grad(total, [part, *self.parameters], seed)
                to_hidden[chunk] = of_part
                to_parameters = _added(to_parameters, of_parameters)
                totals.append(total.detach())
        gradients = [to_hidden.view_as(hidden), *to_parameters]
        return _Made.apply(torch.stack(totals).sum(), seed, gradients, hidden, *self.parameters)


def _added(sums: list[torch.Tensor], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if not sums:
        return list(parts)
    if parts:
        torch._foreach_add_(sums, list(parts))
    return sums


@final
class _Made(torch.autograd.Function):
    """A sum whose gradients are there already, made for the seed that backward is expected to start with."""

    @staticmethod
    def forward(
        ctx: Any, total: torch.Tensor, seed: torch.Tensor, gradients: list[torch.Tensor], *leaves: torch.Tensor
    ) -> torch.Tensor:
        ctx.seed, ctx.gradients = seed, gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Exactly 1 but for the tail of an epoch and ignored targets, whose number of targets is another one.
        factor = outer[0] / ctx.seed
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, None, *(gradient.mul_(factor) for gradient in gradients)
