"""Decoder-only transformer.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

INITIAL_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; `width` is divisible by `num_heads`."""

    num_layers: int
    num_heads: int
    width: int
    context: int
    """Longest sequence in tokens."""
    vocab_size: int
    dropout: float
    bias: bool
    """Biases in linear layers and LayerNorm; the head has none."""
    tie: bool
    """The head's weight is the token embedding's."""


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, shape: Shape) -> None:
        """Initialised by `GPT`."""
        super().__init__()
        self.num_heads = shape.num_heads
        self.dropout = shape.dropout
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=shape.bias)
        self.projection = nn.Linear(shape.width, shape.width, bias=shape.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mixture (batch, length, width) of the positions of `hidden` up to and including each."""
        heads = self.query_key_value(hidden).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()  # each (batch, heads, length, width / heads)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers around a GELU, four times wider inside."""

    def __init__(self, shape: Shape) -> None:
        """Initialised by `GPT`."""
        super().__init__()
        self.expansion = nn.Linear(shape.width, 4 * shape.width, bias=shape.bias)
        self.projection = nn.Linear(4 * shape.width, shape.width, bias=shape.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Transformed positions of `hidden`, both (batch, length, width)."""
        return self.projection(functional.gelu(self.expansion(hidden), approximate="tanh"))


class Block(nn.Module):
    """Attention and feed-forward, each behind a LayerNorm and added to its input."""

    def __init__(self, shape: Shape) -> None:
        """Initialised by `GPT`."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.feed_forward = FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next hidden state; in and out (batch, length, width)."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class GPT(nn.Module):
    """Token and position embedding, blocks, LayerNorm, head."""

    def __init__(self, shape: Shape) -> None:
        """Initialised as GPT-2: normal with standard deviation 0.02, residual projections smaller, biases 0."""
        super().__init__()
        self.context = shape.context
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.position_embedding = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.num_layers)))
        self.norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        if shape.tie:
            self.head.weight = self.token_embedding.weight
        self._initialise(shape)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocab_size) for the token after each of `tokens` (batch, length), int64.

        Raises:
            ValueError: the sequence is longer than the context.
        """
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"a sequence of {length} tokens does not fit a context of {self.context}")
        positions = torch.arange(length, device=tokens.device)
        hidden = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        return self.head(self.norm(self.blocks(hidden)))

    @torch.no_grad()
    def _initialise(self, shape: Shape) -> None:
        # Each layer adds to the residual stream twice; this keeps the stream's variance independent of depth.
        residual_std = INITIAL_STD / (2 * shape.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif name.endswith("projection.weight"):
                parameter.normal_(std=residual_std)
            elif parameter.dim() > 1:
                parameter.normal_(std=INITIAL_STD)
