"""Head and cross-entropy of a language model together, without the logits of all tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trainer4090.kernels import KERNELS, Kernels
from trainer4090.records import Parts, Site, Stage, Transform
from trainer4090.schema import Auto, PositiveInt
from trainer4090.traits import Facts

if TYPE_CHECKING:
    import torch
    from torch import nn

LOGITS_AT_ONCE = 2**27
"""Logits of a chunk that `auto` chooses: 512 MiB in fp32, and enough rows that the matrix products stay large."""


@dataclass(frozen=True)
class Config:
    """How many tokens have logits at once."""

    chunk_tokens: Auto | PositiveInt = "auto"


@KERNELS.register("linear_cross_entropy", Config)
def linear_cross_entropy(config: Config, facts: Facts) -> Kernels:
    """Run head and cross-entropy of a language model in chunks of tokens: the logits of all never exist together."""
    vocab_size = facts.model.num_outputs or facts.data.num_classes
    chunk = _fitting(vocab_size) if config.chunk_tokens == "auto" else config.chunk_tokens
    tokens = facts.batching.micro_batch * facts.data.items_per_sample
    label = f"head and loss for {min(chunk, tokens):,} of a micro-batch's {tokens:,} tokens at a time"
    hand_on = Transform(Stage.REPLACE, label, partial(hand_on_hidden, head=facts.model.head or ""))
    return Kernels(head_chunk_tokens=chunk, transforms=(hand_on,))


def _fitting(vocab_size: int) -> int:
    """The largest power of two of tokens with so many logits."""
    return 1 << (max(LOGITS_AT_ONCE // vocab_size, 1).bit_length() - 1)


def hand_on_hidden(parts: Parts, site: Site, head: str) -> Parts:
    """Let the layer `head` of the last part hand on its input while the part is in training mode, in place."""
    module = parts[-1].module
    layer = module.get_submodule(head)
    layer.forward = partial(_hidden_or_logits, module, layer)
    return parts


def _hidden_or_logits(module: nn.Module, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    # The mode of the whole, since a frozen head is in eval mode always.
    return hidden if module.training else type(layer).forward(layer, hidden)
