"""Tokens that a trained language model goes on with, one after the other. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from trainer4090.records import Model


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float
    """0 takes the most likely one."""
    top_k: int | None
    """Only the `top_k` most likely ones."""
    top_p: float | None
    """Only the most likely ones that together have this probability."""
    seed: int


def continuation(
    model: Model, prompt: Sequence[int], context: int, vocab_size: int, sampling: Sampling, device: torch.device
) -> Iterator[int]:
    """Tokens after `prompt` (at least one), without end; each below `vocab_size`.

    `context`: the tokens that a forward sees, for a model that carries no state: those that it was trained with, since
    positions beyond were never trained.
    """
    # On the CPU, so that the same logits give the same text on every device.
    generator = torch.Generator().manual_seed(sampling.seed)
    logits_after = _windowed(model, context, device) if model.step is None else _stepped(model, device)
    new = list(prompt)
    while True:
        logits = logits_after(new)[:vocab_size].float().cpu()
        token = drawn(logits, sampling, generator)
        yield token
        new = [token]


def drawn(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A token drawn from `logits`, fp32 (vocab_size,)."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    order = logits.argsort(descending=True, stable=True)
    if sampling.top_k is not None:
        order = order[: sampling.top_k]
    # Subtracting the largest first keeps a tiny temperature from overflowing.
    probabilities = ((logits[order] - logits[order[0]]) / sampling.temperature).softmax(0)
    if sampling.top_p is not None:
        before = probabilities.cumsum(0) - probabilities
        kept = before < sampling.top_p  # the first one always
        probabilities, order = probabilities[kept], order[kept]
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


LogitsAfter = Callable[[Sequence[int]], torch.Tensor]
"""New tokens -> logits (vocab_size,) for the token after all tokens so far."""


def _windowed(model: Model, context: int, device: torch.device) -> LogitsAfter:
    """The model run over the newest `context` tokens."""
    seen: list[int] = []

    @torch.no_grad()
    def logits_after(new: Sequence[int]) -> torch.Tensor:
        seen.extend(new)
        del seen[:-context]
        return model.module(torch.tensor([seen], device=device))[0, -1]

    return logits_after


def _stepped(model: Model, device: torch.device) -> LogitsAfter:
    """The model run over the new tokens alone, going on from its state."""
    step, state = model.step, None
    assert step is not None

    @torch.no_grad()
    def logits_after(new: Sequence[int]) -> torch.Tensor:
        nonlocal state
        logits = None
        for token in new:
            logits, state = step(torch.tensor([token], device=device), state)
        assert logits is not None
        return logits[0]

    return logits_after
