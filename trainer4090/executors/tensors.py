"""Functions over inputs, which are a tensor or a pytree of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], inputs: Any) -> Any:
    """`inputs` with `function` applied to every tensor.

    A bare tensor, which most inputs are, goes past the pytree: flattening and rebuilding one costs more host time than
    the operation itself on a small batch.
    """
    return function(inputs) if isinstance(inputs, torch.Tensor) else tree_map(function, inputs)
