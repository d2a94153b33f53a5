"""Floating-point operations of one update, counted on meta tensors: no memory, no arithmetic, no random numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from trainer4090.records import Batch


def model_flops(
    module: nn.Module,
    batch: Batch,
    loss_total: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    notice: Callable[[str], None],
) -> int | None:
    """FLOPs of forward and backward for `batch`, whose tensors may be real or meta; None after a notice.

    A multiply-add counts as two; only matrix products, convolutions and attention count. Frozen parameters lower it.
    Pass the module before its transforms: checkpointing would count recomputation, compiled code cannot run on meta.
    """
    try:
        return _counted(module, batch, loss_total)
    except Exception as error:  # any code of a model may need values; the real step will tell if it is broken
        notice(f"speed/tflops and speed/mfu are not recorded: the model does not run on meta tensors: {error}")
        return None


def _counted(module: nn.Module, batch: Batch, loss_total: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
    state = {name: _meta(value) for name, value in [*module.named_parameters(), *module.named_buffers()]}
    inputs = tree_map_only(torch.Tensor, _meta, batch.inputs)
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        loss = loss_total(functional_call(module, state, (inputs,)), _meta(batch.targets))
        if loss.requires_grad:
            loss.backward()
    return counter.get_total_flops()


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
