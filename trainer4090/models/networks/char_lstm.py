"""Recurrent language model with a hand-written LSTM cell.

Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000; gates in torch's order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

State = tuple[torch.Tensor, torch.Tensor]
"""Hidden state and memory of a layer, each (batch, width)."""


class LSTMCell(nn.Module):
    """One time step, given the input's share of the gates."""

    def __init__(self, width: int) -> None:
        """Initialised by `CharLSTM`; the bias is in the input's share."""
        super().__init__()
        self.recurrent = nn.Linear(width, 4 * width, bias=False)

    def forward(
        self, projected: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Next `(hidden, memory)`, each (batch, width), from `projected` (batch, 4 * width).

        `hidden` has the dtype of `projected`; `memory` keeps its own, because a sum over all steps needs more bits
        than the matrix products of autocast have.
        """
        enter, keep, candidate, leave = (projected + self.recurrent(hidden)).chunk(4, dim=-1)
        memory = keep.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
        return (leave.sigmoid() * memory.tanh()).to(projected.dtype), memory


class LSTMLayer(nn.Module):
    """A recurrence over the whole sequence that starts at zero, then dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        """Initialised by `CharLSTM`."""
        super().__init__()
        self.input_projection = nn.Linear(width, 4 * width)
        self.cell = LSTMCell(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Hidden states of all steps; in and out (batch, length, width)."""
        # Time first: each step then reads one contiguous piece.
        projected = self.input_projection(sequence.transpose(0, 1))
        hidden, memory = self._start(projected[0])
        outputs = []
        for step in projected.unbind(0):
            hidden, memory = self.cell(step, hidden, memory)
            outputs.append(hidden)
        return self.dropout(torch.stack(outputs, dim=1))

    def step(self, entry: torch.Tensor, state: State | None) -> tuple[torch.Tensor, State]:
        """Hidden state (batch, width) after `entry` (batch, width), without dropout, and the state to go on with."""
        projected = self.input_projection(entry)
        hidden, memory = self.cell(projected, *(self._start(projected) if state is None else state))
        return hidden, (hidden, memory)

    def _start(self, projected: torch.Tensor) -> State:
        batch, width = projected.shape[0], projected.shape[1] // 4
        memory = projected.new_zeros(batch, width, dtype=self.input_projection.weight.dtype)
        return projected.new_zeros(batch, width), memory


class CharLSTM(nn.Module):
    """Embedding, recurrent layers, linear head."""

    def __init__(self, vocab_size: int, width: int, num_layers: int, dropout: float) -> None:
        """Layers initialised as `torch.nn.LSTM`: uniform within 1 / sqrt(width)."""
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.Sequential(*(LSTMLayer(width, dropout) for _ in range(num_layers)))
        self.head = nn.Linear(width, vocab_size)
        for parameter in self.layers.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocab_size) for the token after each of `tokens` (batch, length), int64."""
        return self.head(self.layers(self.embedding(tokens)))

    def step(self, tokens: torch.Tensor, states: Sequence[State] | None) -> tuple[torch.Tensor, list[State]]:
        """Logits (batch, vocab_size) for the token after `tokens` (batch,), int64, and the state of every layer.

        `states` are those of the token before, None at the beginning. Without dropout, for generation.
        """
        hidden, reached = self.embedding(tokens), []
        for index, layer in enumerate(self.layers):
            hidden, state = layer.step(hidden, None if states is None else states[index])  # type: ignore[operator]
            reached.append(state)
        return self.head(hidden), reached
