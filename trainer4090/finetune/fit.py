"""Weights into a model: every name and shape must be the model's own, besides a head for other classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from trainer4090.errors import ConfigError, Problem
from trainer4090.finetune.depth import depths
from trainer4090.records import Model

PREFIXES = ("_orig_mod.", "module.", "model.")
"""Of torch.compile, DataParallel and DDP, and Lightning."""
_COUNTER = "num_batches_tracked"
"""BatchNorm's buffer that files from before torch 0.4.1 lack; nothing reads it unless momentum is None."""
_NUM_NAMED = 3
"""Names of each kind that an error has room for."""

TensorsByName = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Difference:
    """What keeps a file's tensors from being the model's."""

    missing: list[str]
    unexpected: list[str]
    shapes: list[str]

    def __str__(self) -> str:
        kinds = (("without", self.missing), ("with", self.unexpected), ("other shapes:", self.shapes))
        return ", ".join(f"{word} {_few(names)}" for word, names in kinds if names)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.shapes)


def load_into(
    model: Model, tensors: TensorsByName, source: str, num_outputs: int, notice: Callable[[str], None]
) -> None:
    """Put `tensors` into the module of `model`, whose head has `num_outputs` classes.

    The head keeps its initialisation when the file's has another number of classes; `notice` is told.

    Raises:
        ConfigError: the tensors are of another model; the message names a few of each kind.
    """
    own: TensorsByName = model.module.state_dict()
    tied = _tied(model.module)
    tensors = _completed(_without_prefix(tensors, own, notice), own, tied)
    heads = [name for name in _heads(model, num_outputs, tied) if _other_classes(name, tensors, own)]
    replaced = {f"{head}.{kind}" for head in heads for kind in ("weight", "bias")}
    difference = _Difference(
        missing=[name for name in own if name not in tensors and not name.endswith(_COUNTER)],
        unexpected=[name for name in tensors if name not in own],
        shapes=[
            f"{name} {_size(tensors[name])} for {_size(tensor)} here"
            for name, tensor in own.items()
            if name in tensors and name not in replaced and not _alike(tensors[name], tensor)
        ],
    )
    if difference:
        remedy = "choose the model that it was saved from, with the same values of model.*"
        raise ConfigError(Problem("model.weights", f"{source} is of another model: {difference}", remedy))
    _require_tied_alike(tied, tensors, source)
    for head in heads:
        classes = len(tensors[f"{head}.weight"])
        notice(f"model.weights: {head} is new, for {num_outputs} classes where {source} has {classes}")
    # Into a copy of the own state: it carries the versions of the modules, which a file may lack.
    own.update({name: tensor for name, tensor in tensors.items() if name not in replaced})
    model.module.load_state_dict(own)


def _without_prefix(tensors: TensorsByName, own: TensorsByName, notice: Callable[[str], None]) -> TensorsByName:
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            if all(name.startswith(prefix) for name in own):
                continue
            notice(f"model.weights: {prefix!r} is left out of the file's names")
            stripped = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
            return _without_prefix(stripped, own, notice)
    return tensors


def _tied(module: nn.Module) -> list[list[str]]:
    """Groups of names that are one parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _completed(tensors: TensorsByName, own: TensorsByName, tied: Sequence[Sequence[str]]) -> TensorsByName:
    """With all names of a tied parameter: safetensors keeps one of them."""
    twins = {name: names for names in tied for name in names}
    filled = dict(tensors)
    for name in own:
        twin = next((other for other in twins.get(name, ()) if other in tensors), None)
        if name not in filled and twin is not None:
            filled[name] = tensors[twin]
    return filled


def _require_tied_alike(tied: Sequence[Sequence[str]], tensors: TensorsByName, source: str) -> None:
    for first, *others in tied:
        for other in others:
            if not torch.equal(tensors[first], tensors[other]):
                given = f"{source} is of another model: {first} and {other} differ, and are one parameter here"
                raise ConfigError(Problem("model.weights", given, "choose a model without tied weights"))


def _heads(model: Model, num_outputs: int, tied: Sequence[Sequence[str]]) -> list[str]:
    """Names of the layers that end in the classes: behind the last block, and in a model without blocks the last one.

    A weight that is also an embedding belongs to the input as much, so it cannot be exchanged alone.
    """
    bound = {name for names in tied for name in names}
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    found = [
        name
        for name, child in model.module.named_modules()
        if isinstance(child, layers) and len(child.weight) == num_outputs and f"{name}.weight" not in bound
    ]
    if not model.blocks:
        return found[-1:]
    deep = depths((name for name, _ in model.module.named_modules()), model.blocks)
    return [name for name in found if deep.get(name) == len(model.blocks) + 1]


def _other_classes(head: str, tensors: TensorsByName, own: TensorsByName) -> bool:
    """Whether the file's layer differs in the number of classes and in nothing else."""
    weight, theirs = own[f"{head}.weight"], tensors.get(f"{head}.weight")
    return theirs is not None and theirs.shape[1:] == weight.shape[1:] and len(theirs) != len(weight)


def _alike(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    return theirs.shape == ours.shape and theirs.is_floating_point() == ours.is_floating_point()


def _size(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _few(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + rest
