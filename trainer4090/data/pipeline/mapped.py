"""Windows of a token file, read where they are asked for. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trainer4090.data import Source
from trainer4090.data.pipeline.resident import Resident, fits
from trainer4090.data.pipeline.sources import WindowSource, epoch_offset
from trainer4090.data.pipeline.token_files import TokenFile


@dataclass(frozen=True)
class MappedWindowSource:
    """The samples of a `WindowSource` over the tokens of `file`, of which only the windows that are read take memory.

    A worker process gets the path, never the content.
    """

    file: TokenFile
    length: int
    num_samples: int
    num_offsets: int
    seed: int

    def __len__(self) -> int:
        """Number of samples."""
        return self.num_samples

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and next tokens, each int64 (n, length)."""
        rows = self._rows(indices, epoch)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Next tokens, int64 (n, length)."""
        return self._rows(indices, epoch)[:, 1:].contiguous()

    def resident(self, device: torch.device) -> Source:
        """The same tokens kept on `device` as int32, if they take at most `resident.LIMIT_MIB`."""
        if not fits(device, torch.empty(self.file.num_tokens, dtype=torch.int32, device="meta")):
            return self
        tokens = torch.from_numpy(self.file.mapped().astype(np.int32)).to(device)
        return Resident(self, WindowSource(tokens, self.length, self.num_samples, self.num_offsets, self.seed), device)

    def _rows(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Windows with the token after each, int64 (n, length + 1)."""
        starts = indices.numpy() * self.length + epoch_offset(self.seed, epoch, self.num_offsets)
        # A view (tokens - length, length + 1): taking rows of it copies the asked windows and nothing else.
        every = np.lib.stride_tricks.sliding_window_view(self.file.mapped(), self.length + 1)
        return torch.from_numpy(every[starts].astype(np.int64))
