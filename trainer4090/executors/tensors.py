"""Functions over inputs, which are a tensor or a pytree of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from trainer4090.records import Batch


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], inputs: Any) -> Any:
    """`inputs` with `function` applied to every tensor.

    A bare tensor, which most inputs are, goes past the pytree: flattening and rebuilding one costs more host time than
    the operation itself on a small batch.
    """
    return function(inputs) if isinstance(inputs, torch.Tensor) else tree_map(function, inputs)


def tensors_of(inputs: Any) -> list[torch.Tensor]:
    """Every tensor of `inputs`, in an order that its structure alone decides."""
    return [inputs] if isinstance(inputs, torch.Tensor) else tree_leaves(inputs)


def shape_of(batch: Batch) -> tuple[Any, ...]:
    """Shapes and dtypes of all tensors of a batch, to compare or to look up with."""
    return tuple((tensor.shape, tensor.dtype) for tensor in (*tensors_of(batch.inputs), batch.targets))
