"""The blocks of a network that was written elsewhere, found by watching one forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

Call = tuple[Any, Any]
"""Input and output of a module that was called once, with one argument."""


def find_chain(module: nn.Module, item_shape: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the longest run of submodules that hand on one tensor: the output of each *is* the input of the next.

    A run begins and ends with a module that has submodules, since recomputing a lone layer saves nothing: VGG, nothing
    but lone layers, has no blocks. The pass runs on the meta device with images (2, *item_shape) and computes nothing;
    parameters, buffers and random state stay as they are. () when no two modules form a run.

    Raises:
        RuntimeError: the network does not take such items.
    """
    calls = _watch(module, item_shape)
    runs = (run for prefix, parent in module.named_modules() for run in _runs(prefix, parent, calls))
    longest = max(runs, key=len, default=())
    return longest if len(longest) > 1 else ()


def _watch(module: nn.Module, item_shape: tuple[int, ...]) -> dict[str, Call]:
    """Name -> call of every submodule, from one forward pass on the meta device.

    A module that is called twice or changes its input in place is left out: what it got cannot be given to it again.
    """
    calls: dict[str, Call] = {}
    versions: dict[str, int] = {}
    left_out: set[str] = set()

    def before(name: str, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], torch.Tensor):
            versions[name] = args[0]._version

    def record(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if name in calls or (name in versions and args[0]._version != versions[name]):
            left_out.add(name)
        alone = len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor)
        # `object()` is no other call's output, so that such a call links to nothing.
        calls[name] = (args[0] if alone else object(), output)

    hooks = [
        child.register_forward_hook(
            lambda _, args, kwargs, output, name=name: record(name, args, kwargs, output), with_kwargs=True
        )
        for name, child in module.named_modules()
    ]
    hooks += [
        child.register_forward_pre_hook(lambda _, args, name=name: before(name, args))
        for name, child in module.named_modules()
    ]
    state = itertools.chain(module.named_parameters(), module.named_buffers())
    meta = {name: torch.empty_like(tensor, device="meta") for name, tensor in state}
    try:
        with torch.no_grad():
            functional_call(module, meta, torch.empty(2, *item_shape, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: call for name, call in calls.items() if name not in left_out}


def _runs(prefix: str, parent: nn.Module, calls: dict[str, Call]) -> Iterator[tuple[str, ...]]:
    """Maximal runs among the children of `parent`."""
    run: list[tuple[str, bool]] = []
    for name, child in _units(prefix, parent):
        linked = run and name in calls and calls[name][0] is calls[run[-1][0]][1]
        if not linked:
            yield _trimmed(run)
            run = []
        if name in calls:
            run.append((name, _composite(child)))
    yield _trimmed(run)


def _units(prefix: str, parent: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Children of `parent`; in place of a sequence of composite modules, its members."""
    for name, child in parent.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(child, (nn.Sequential, nn.ModuleList)) and all(map(_composite, child)):
            yield from _units(path, child)
        else:
            yield path, child


def _composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _trimmed(run: list[tuple[str, bool]]) -> tuple[str, ...]:
    """Names from the first composite module to the last."""
    ends = [index for index, (_, composite) in enumerate(run) if composite]
    return tuple(name for name, _ in run[ends[0] : ends[-1] + 1]) if ends else ()
