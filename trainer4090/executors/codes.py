"""Numbers in 8 bits: a code word for each value relative to the largest of its block, and that largest one.

The code is finest where a block's large values are and reaches down seven decades, each with half the words of the one
above: what an optimizer keeps spans that much within a block, while a few percent of a value do not matter.

Source: Dettmers, Lewis, Shleifer, Zettlemoyer, 8-bit Optimizers via Block-wise Quantization (2022).
"""

from __future__ import annotations

import functools
import itertools
from typing import Literal

import torch
from torch.nn import functional

Kind = Literal["signed", "unsigned"]
"""Whether a value may be negative; those that never are have twice as many words."""
BLOCK = 256
"""Values that share a largest one."""
SLICE = 2**22
"""Values that are encoded at once; their positions in the code are int32, as large as the values themselves."""
_DECADES = 7


def words(kind: Kind) -> list[float]:
    """The at most 256 values of the code, rising from -1 or 0 to 1."""
    magnitudes = []
    for decade in range(_DECADES, 0, -1):
        low, high = 10.0**-decade, 10.0 ** (1 - decade)
        count = 2 ** (_DECADES - decade + (kind == "unsigned"))
        magnitudes += [low + (high - low) * (index + 1) / count for index in range(count)]
    return [*(-each for each in reversed(magnitudes) if kind == "signed"), 0.0, *magnitudes]


def limits(kind: Kind) -> list[float]:
    """Upper ends of what each word but the last stands for: the middle between two.

    Where nothing is negative only 0 itself becomes 0: a root of it divides the step of Adam.
    """
    code = words(kind)
    middles = [(low + high) / 2 for low, high in itertools.pairwise(code)]
    return middles if kind == "signed" else [0.0, *middles[1:]]


@functools.cache
def _table(kind: Kind, limited: bool, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(limits(kind) if limited else words(kind), dtype=dtype, device=device)


@torch.no_grad()
def encoded(values: torch.Tensor, kind: Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, uint8 of the same shape; largest magnitudes (blocks,), dtype of the values), blocks in row-major order.

    What was decoded is encoded to the same codes, bit for bit.
    """
    flat = values.reshape(-1)
    codes = torch.empty(flat.shape, dtype=torch.uint8, device=flat.device)
    largest = []
    for start in range(0, len(flat), SLICE):
        part = flat[start : start + SLICE]
        rows = functional.pad(part, (0, -len(part) % BLOCK)).view(-1, BLOCK)
        largest.append(torch.linalg.vector_norm(rows, float("inf"), dim=1))
        relative = rows / largest[-1].clamp(min=torch.finfo(rows.dtype).tiny)[:, None]
        found = torch.bucketize(relative, _table(kind, True, rows.dtype, rows.device), out_int32=True)
        codes[start : start + SLICE] = found.view(-1)[: len(part)]
    return codes.view(values.shape), torch.cat(largest)


@torch.no_grad()
def decoded(codes: torch.Tensor, largest: torch.Tensor, kind: Kind) -> torch.Tensor:
    """The values, contiguous, in the dtype of `largest`."""
    table = _table(kind, False, largest.dtype, largest.device)
    values = torch.empty(codes.numel(), dtype=largest.dtype, device=largest.device)
    for start in range(0, codes.numel(), SLICE):
        part = codes.view(-1)[start : start + SLICE]
        rows = functional.pad(table[part.int()], (0, -len(part) % BLOCK)).view(-1, BLOCK)
        rows *= largest[start // BLOCK : start // BLOCK + len(rows), None]
        values[start : start + SLICE] = rows.view(-1)[: len(part)]
    return values.view(codes.shape)
