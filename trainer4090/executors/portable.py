"""Between the state of a run and a checkpoint file: the bare model's names and shapes, whatever transforms did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import nn

from trainer4090.records import NameMap

Change = Callable[[str, torch.Tensor], torch.Tensor]
"""(name in the state dict, tensor that belongs to it) -> the tensor on the other side."""


def joined(maps: Sequence[NameMap]) -> NameMap:
    """One map from those of transforms, in the order in which they were applied."""

    def to_file(name: str, tensor: torch.Tensor) -> torch.Tensor:
        for each in reversed(maps):
            tensor = each.to_file(name, tensor)
        return tensor

    def from_file(name: str, tensor: torch.Tensor) -> torch.Tensor:
        for each in maps:
            tensor = each.from_file(name, tensor)
        return tensor

    return NameMap(to_file, from_file)


def changed(state: Mapping[str, torch.Tensor], change: Change) -> dict[str, torch.Tensor]:
    """`state` with every tensor changed; a state dict of a module stays one, versions of its modules included."""
    after: Any = copy(state)  # `.copy()` would lose the versions
    done: dict[Any, torch.Tensor] = {}
    for name, tensor in state.items():
        place = tensor.data_ptr(), tensor.shape, tensor.stride()  # a tied tensor stays one, in a file too
        if place not in done:
            done[place] = change(name, tensor)
        after[name] = done[place]
    return after


def changed_optimizer(state: Mapping[str, Any], names: Mapping[int, str], change: Change) -> dict[str, Any]:
    """The state dict of an optimizer with every tensor changed; `names`: of its parameters by their number."""

    def of_parameter(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: change(name, value) if isinstance(value, torch.Tensor) else value for key, value in values.items()}

    per_parameter = {index: of_parameter(names[index], values) for index, values in state["state"].items()}
    return {"state": per_parameter, "param_groups": [_without_rate(group) for group in state["param_groups"]]}


def _without_rate(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group without its learning rate: every update sets its own, and a captured one leaves its tensor there."""
    return {name: value for name, value in group.items() if name != "lr"}


def names_in(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[int, str]:
    """Names of the parameters of `optimizer` by the number that its state dict gives them."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return {index: names[id(parameter)] for index, parameter in enumerate(parameters)}


def with_own_options(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved state under the options of `optimizer`: `fused`, for one, follows the precision of today."""
    pairs = zip(saved["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**own, "params": group["params"]} for group, own in pairs]
    return {"state": saved["state"], "param_groups": groups}
