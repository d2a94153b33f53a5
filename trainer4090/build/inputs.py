"""The last step of a batch before the module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from trainer4090.executors.tensors import map_tensors


def prepared(inputs: Any, prepare: Callable[[Any], Any], dtype: torch.dtype, channels_last: bool) -> Any:
    """Inputs as the module takes them; only 4-D tensors have a channels_last layout."""
    # Decoders write channels last, other sources do not. Before `prepare`, which keeps the layout: moving bytes costs a
    # quarter of moving floats.
    layout = torch.channels_last if channels_last else torch.contiguous_format
    inputs = map_tensors(partial(_laid_out, layout=layout), inputs)
    return map_tensors(partial(_cast, dtype=dtype), prepare(inputs))


def _laid_out(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype != dtype and tensor.is_floating_point() else tensor
