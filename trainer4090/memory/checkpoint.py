"""Activation checkpointing: hold a part of the activations, chosen in one of three ways, and compute the rest again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from trainer4090.attention import allowed_backends, only
from trainer4090.errors import ConfigError, Problem
from trainer4090.memory import MEMORY, Memory
from trainer4090.records import AroundForward, Part, Parts, Site, Stage, Transform
from trainer4090.schema import PositiveInt, Range
from trainer4090.traits import Facts

if TYPE_CHECKING:
    import torch
    from torch import nn


OPERATIONS = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
    "convolution": ("convolution",),
    "attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
}
"""Word of `select` -> operations of ATen whose outputs are held: those that take long to compute again."""


@dataclass(frozen=True)
class Config:
    """What is held: the input of every few blocks, what the compiler chooses, or the outputs of some operations."""

    every: PositiveInt | None = 2
    budget: Annotated[float, Range(low=0, high=1, above_low=True)] | None = None
    select: tuple[Literal["matmul", "convolution", "attention"], ...] = ()

    def __post_init__(self) -> None:
        given = {"every": self.every, "budget": self.budget, "select": list(self.select) or None}
        used = [f"{name}={value}" for name, value in given.items() if value is not None]
        if not used:
            raise ValueError("every, budget and select are all off: set every=2, or use memory=none")
        if len(used) > 1:
            raise ValueError(f"{' beside '.join(used)}: one of them decides, set the others to null ([] for select)")


@MEMORY.register("checkpoint", Config)
def checkpoint(config: Config, facts: Facts) -> Memory:
    """Hold a part of the activations, such as every other block's input; recompute the rest in backward."""
    if config.budget is not None:
        label = (
            f"the compiler holds {config.budget:g} of the activations' bytes and recomputes the rest (measure: "
            "peak memory need not fall with it)"
        )
        around = AroundForward(label, partial(budgeted, config.budget))
        # torch 2.14's partitioner keeps the random state only of what a user's own checkpoint recomputes.
        return Memory(needs_compile=True, redraws="budget", contexts=(around,))
    every = config.every or 1

    def apply(parts: Parts, site: Site) -> Parts:
        for part in parts:
            checkpoint_blocks(part, every, config.select)
        return parts

    label = f"recompute activations in segments of {every} block{'s' if every > 1 else ''}"
    if config.select:
        label = f"recompute activations of each block but the outputs of {', '.join(config.select)}"
    # Attention draws its dropout itself: where it is held it does not draw again, and all that follows draws another.
    redraws = "select" if "attention" in config.select and facts.model.attention is not False else None
    return Memory(
        needs_blocks=True, recomputes=True, redraws=redraws, transforms=(Transform(Stage.CHECKPOINT, label, apply),)
    )


def budgeted(budget: float, module: nn.Module, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """What makes a context in which a forward is compiled, when it is, with this share of activations to hold.

    Around every forward, since any may be the first of its shapes; the compiler divides forward from backward in it.
    """
    import torch._functorch.config as compiler

    return lambda: compiler.patch(activation_memory_budget=budget)


def checkpoint_blocks(part: Part, every: int, select: Sequence[str] = ()) -> None:
    """Replace the forwards of `part`'s blocks so that each run of `every` blocks is one checkpointed segment.

    The first block of a segment runs all of it; the others pass their input on. Of the operations named in `select`
    the outputs are held too. Module structure, and with it every state-dict name, stays as it is.

    Raises:
        ConfigError: there are no blocks.
    """
    if not part.blocks:
        raise ConfigError(Problem("memory", "checkpoint on a model that names no blocks", "use memory=none"))
    blocks = [part.module.get_submodule(name) for name in part.blocks]
    held = operations(select)
    for start in range(0, len(blocks), every):
        segment = _Segment(blocks[start : start + every], held)
        for block in segment.blocks:
            block.forward = partial(segment.enter, block)


def operations(select: Sequence[str]) -> list[Any]:
    """The operations that words of `select` stand for, as the dispatcher knows them."""
    import torch

    return [getattr(torch.ops.aten, name).default for word in select for name in OPERATIONS[word]]


@final
class _Segment:
    """Blocks whose activations are computed together and, in backward, computed again."""

    def __init__(self, blocks: Sequence[nn.Module], held: list[Any]) -> None:
        """`held`: operations whose outputs are not computed again."""
        self.blocks = blocks
        self._held = held
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
        from torch.utils import checkpoint as torchs

        recompute_in_backward = torchs.checkpoint
        if not torch.is_grad_enabled():
            return self._run(hidden)
        options: dict[str, Any] = {}
        if not torch.compiler.is_compiling():
            # No state of random numbers can be read while a CUDA graph is captured; the plan has refused dropout there.
            keep = not (hidden.is_cuda and torch.cuda.is_current_stream_capturing())
            options = {"use_reentrant": False, "preserve_rng_state": keep, "context_fn": self._contexts}
            if self._held and _has_hooks_option():
                options["respect_saved_tensors_hooks"] = True
            return recompute_in_backward(self._run, hidden, **options)
        # The compiler functionalises buffer updates, so recomputing leaves them alone; a context would crash it, but
        # for this kind, of which it reads what to hold without entering it.
        if self._held:
            options = {"context_fn": partial(torchs.create_selective_checkpoint_contexts, self._held)}
        return recompute_in_backward(self._run, hidden, use_reentrant=False, **options)

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        for forward in self._forwards:
            hidden = forward(hidden)
        return hidden

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Contexts of the forward and of the second one."""
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        again = recomputing(self.blocks, allowed_backends())
        if not self._held:
            return nullcontext(), again
        holding, reusing = create_selective_checkpoint_contexts(self._held)
        return holding, _both(again, reusing)


@functools.cache
def _has_hooks_option() -> bool:
    """Whether outputs that are held may leave the device as other saved tensors do; torch 2.11 keeps them there."""
    from torch.utils.checkpoint import checkpoint as recompute_in_backward

    return "respect_saved_tensors_hooks" in inspect.signature(recompute_in_backward).parameters


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield


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
