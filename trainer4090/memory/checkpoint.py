"""Activation checkpointing: hold the input of every few blocks and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from trainer4090.attention import allowed_backends, only
from trainer4090.errors import ConfigError, Problem
from trainer4090.memory import MEMORY, Memory
from trainer4090.records import Part, Parts, Site, Stage, Transform
from trainer4090.schema import PositiveInt
from trainer4090.traits import Facts

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
    return Memory(needs_blocks=True, recomputes=True, transforms=(Transform(Stage.CHECKPOINT, label, apply),))


def checkpoint_blocks(part: Part, every: int) -> None:
    """Replace the forwards of `part`'s blocks so that each run of `every` blocks is one checkpointed segment.

    The first block of a segment runs all of it; the others pass their input on. Module structure, and with it every
    state-dict name, stays as it is.

    Raises:
        ConfigError: there are no blocks.
    """
    if not part.blocks:
        raise ConfigError(Problem("memory", "checkpoint on a model that names no blocks", "use memory=none"))
    blocks = [part.module.get_submodule(name) for name in part.blocks]
    for start in range(0, len(blocks), every):
        segment = _Segment(blocks[start : start + every])
        for block in segment.blocks:
            block.forward = partial(segment.enter, block)


@final
class _Segment:
    """Blocks whose activations are computed together and, in backward, computed again."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self.blocks = blocks
        self._forwards = [block.forward for block in blocks]
        self._output: torch.Tensor | None = None
        """What the later blocks are expected to pass on, while they do so."""

    def enter(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """The segment's output: computed when its first block is called, passed on by the others.

        Raises:
            RuntimeError: the model does something between two blocks, which would get lost.
        """
        if block is self.blocks[0]:
            output = self._checkpointed(hidden)
        elif hidden is self._output:
            output = hidden
        else:
            raise RuntimeError("blocks are no chain: the model does something between two blocks of one segment")
        # A reference that outlived the last block would hold the activation through backward.
        self._output = None if block is self.blocks[-1] else output
        return output

    def _checkpointed(self, hidden: torch.Tensor) -> torch.Tensor:
        import torch
        from torch.utils.checkpoint import checkpoint as recompute_in_backward

        if not torch.is_grad_enabled():
            return self._run(hidden)
        if torch.compiler.is_compiling():
            # The compiler functionalises buffer updates, so recomputing leaves them alone; a context would crash it.
            return recompute_in_backward(self._run, hidden, use_reentrant=False)
        # No state of random numbers can be read while a CUDA graph is captured; the plan has refused dropout there.
        keep = not (hidden.is_cuda and torch.cuda.is_current_stream_capturing())
        options: Any = {"use_reentrant": False, "preserve_rng_state": keep, "context_fn": self._contexts}
        return recompute_in_backward(self._run, hidden, **options)

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        for forward in self._forwards:
            hidden = forward(hidden)
        return hidden

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), recomputing(self.blocks, allowed_backends())


@contextmanager
def recomputing(blocks: Sequence[nn.Module], backends: Sequence[str]) -> Iterator[None]:
    """A second forward of `blocks` like the first one: no trace in buffers, and attention by the same backends.

    torch itself brings back autocast and the random state.
    """
    with cloned_buffers(blocks), only(backends):
        yield


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
