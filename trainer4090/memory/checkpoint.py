"""Activation checkpointing: hold the input of every few blocks and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer4090.memory import MEMORY, Memory
from trainer4090.records import Facts, Part, Parts, Site, Stage, Transform
from trainer4090.schema import PositiveInt

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Config:
    """Length of a checkpointed segment."""

    every: PositiveInt = 2


@MEMORY.register("checkpoint", Config)
def checkpoint(config: Config, facts: Facts) -> Memory:
    """Hold activations only between every few blocks; recompute the others in backward (memory for time)."""

    def apply(parts: Parts, site: Site) -> Parts:
        for part in parts:
            checkpoint_blocks(part, config.every)
        return parts

    label = f"recompute activations in segments of {config.every} block{'s' if config.every > 1 else ''}"
    return Memory(needs_blocks=True, transforms=(Transform(Stage.CHECKPOINT, label, apply),))


def checkpoint_blocks(part: Part, every: int) -> None:
    """Replace the forwards of `part`'s blocks so that each run of `every` blocks is one checkpointed segment.

    The first block of a segment runs all of it; the others pass their input on. Module structure, and with it every
    state-dict name, stays as it is.
    """
    blocks = [part.module.get_submodule(name) for name in part.blocks]
    for start in range(0, len(blocks), every):
        _join_segment(blocks[start : start + every])


def _join_segment(blocks: Sequence[nn.Module]) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint as recompute_in_backward

    forwards = [block.forward for block in blocks]
    last_output: list[Any] = [None]

    def run(hidden: torch.Tensor) -> torch.Tensor:
        for forward in forwards:
            hidden = forward(hidden)
        return hidden

    def segment(hidden: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            output = run(hidden)
        elif torch.compiler.is_compiling():
            # The compiler functionalises buffer updates, so recomputing leaves them alone; a context would crash it.
            output = recompute_in_backward(run, hidden, use_reentrant=False)
        else:
            contexts = _recompute_contexts(blocks)
            output = recompute_in_backward(run, hidden, use_reentrant=False, context_fn=contexts)
        if len(blocks) > 1 and not torch.compiler.is_compiling():
            last_output[0] = output
        return output

    def pass_on(hidden: torch.Tensor, last: bool) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            if hidden is not last_output[0]:
                raise RuntimeError("blocks are no chain: the model does something between two blocks of one segment")
            if last:
                last_output[0] = None  # a reference kept here would hold the activation through backward
        return hidden

    blocks[0].forward = segment
    for block in blocks[1:]:
        block.forward = partial(pass_on, last=block is blocks[-1])


def _recompute_contexts(
    blocks: Sequence[nn.Module],
) -> Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]:
    return lambda: (nullcontext(), cloned_buffers(blocks))


@contextmanager
def cloned_buffers(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let `blocks` work on clones of their buffers, so that a second forward leaves no second trace.

    Without it BatchNorm counts every batch twice and moves its running statistics twice, while loss and gradients
    still agree (https://github.com/pytorch/pytorch/issues/96136).
    """
    modules = [module for block in blocks for module in block.modules() if module._buffers]
    originals = [dict(module._buffers) for module in modules]
    try:
        for module, buffers in zip(modules, originals, strict=True):
            for name, buffer in buffers.items():
                module._buffers[name] = None if buffer is None else buffer.clone()
        yield
    finally:
        for module, buffers in zip(modules, originals, strict=True):
            module._buffers.update(buffers)
