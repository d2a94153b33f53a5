"""Builders of plugins, wrapped: what one returns is checked before anybody relies on it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from trainer4090.data import Data
from trainer4090.errors import ConfigError, Problem
from trainer4090.kernels import Kernels
from trainer4090.memory import Memory
from trainer4090.metrics import Metric
from trainer4090.optimizers import Optimizer
from trainer4090.parallelism import Parallelism
from trainer4090.plugin_modules import PluginModule, text_of
from trainer4090.plugins import derive
from trainer4090.plugins.contract import Found, location
from trainer4090.precision import Precision
from trainer4090.records import Loss, Model
from trainer4090.registry import Entry
from trainer4090.schedules import Horizon, Schedule

RETURNS: dict[str, tuple[type, str]] = {
    "model": (Model, 'return Model(module, blocks=("body.0", "body.1")), or blocks=() if no submodules form a chain'),
    "data": (Data, "return Data(train, evaluation), both made by tensor_source or dataset_source"),
    "loss": (Loss, "return per_target(function), or Loss(total, count) with sums over targets"),
    "metrics": (tuple, 'return (Metric("name", True, lambda: Mean(sums)),)'),
    "optimizer": (Optimizer, "return Optimizer(config.lr, weight_decay=0.0, build=lambda groups, fused: ...)"),
    "schedule": (Schedule, "return Schedule(factor, needs_total=True)"),
    "precision": (Precision, "return Precision(...)"),
    "memory": (Memory, "return Memory(...)"),
    "kernels": (Kernels, "return Kernels(...)"),
    "parallelism": (Parallelism, "return Parallelism(...)"),
}
"""Group -> the record that its builders return, and how one is written."""
_SOURCE_METHODS = ("__len__", "fetch", "targets", "resident")
_SOURCE = "use tensor_source(inputs, targets), or dataset_source(dataset, targets, seed) for a torch Dataset"
_TRIED_UPDATES = 10


def fitted(plugin: PluginModule, group: str, entry: Entry[Any]) -> Entry[Any]:
    """The entry of a plugin with a checked builder, and with the traits that it leaves out."""
    build = _checked(location(plugin, entry.build), group, entry)
    traits, found = entry.traits, None
    if traits is None and group == "data":
        traits = derive.data_traits(build)
    elif traits is None and group == "loss":
        traits = derive.loss_traits(build)
    elif traits is None and group == "model":
        found = derive.model_traits(build)
    return dataclasses.replace(entry, build=build, traits=traits, derive=found)


def _checked(where: str, group: str, entry: Entry[Any]) -> Callable[..., Any]:
    option = f"{group}={entry.name}"
    if group not in RETURNS:
        return entry.build
    expected, remedy = RETURNS[group]

    @functools.wraps(entry.build)
    def build(*arguments: Any) -> Any:
        try:
            result = entry.build(*arguments)
        except TypeError as error:
            if f"{expected.__name__}.__init__()" not in str(error):
                raise
            raise ConfigError(Problem(where, f"{option}: {text_of(error)}", remedy)) from error
        if not isinstance(result, expected):
            given = f"{option} returns {_kind(result)} and no {expected.__name__}"
            raise ConfigError(Problem(where, given, _model_remedy(result, remedy) if group == "model" else remedy))
        problems = [Problem(where, f"{option}: {given}", cure) for given, cure in CHECKS.get(group, _nothing)(result)]
        if problems:
            raise ConfigError(*problems)
        return FINISHED[group](result, where) if group in FINISHED else result

    return build


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _model_remedy(result: Any, remedy: str) -> str:
    """With the names of a chain that the module has for sure."""
    from torch import nn

    if not isinstance(result, nn.Module):
        return remedy
    for name, module in result.named_modules():
        if name and isinstance(module, nn.Sequential) and len(module) > 1:
            return f"return Model(module, blocks=tuple(f'{name}.{{index}}' for index in range({len(module)})))"
    return remedy


def _nothing(result: Any) -> Found:
    yield from ()


def _model_problems(model: Model) -> Found:
    from torch import nn

    if not isinstance(model.module, nn.Module):
        yield f"Model holds {_kind(model.module)} and no nn.Module", "return Model(module, blocks)"
        return
    if not any(parameter.requires_grad for parameter in model.module.parameters()):
        yield (
            "the module has no parameter to train",
            "assign layers to self in __init__, and lists of them as ModuleList",
        )
    if isinstance(model.blocks, str):
        yield f"blocks is the text {model.blocks!r}", f'a tuple of one has a comma: blocks=("{model.blocks}",)'
        return
    names = [name for name, _ in model.module.named_modules() if name]
    for block in (*model.blocks, *model.compile_units):
        if not isinstance(block, str):
            yield f"blocks holds {_kind(block)}", 'blocks are names of submodules: blocks=("body.0", "body.1")'
        elif block not in names:
            yield f"there is no submodule {block!r}", f"name some of: {', '.join(names[:12])}"
    if len(set(model.blocks)) < len(model.blocks):
        yield "blocks names a submodule twice", "name each once, in the order in which they run"


def _data_problems(data: Data) -> Found:
    for name, source in (("train", data.train), ("evaluation", data.evaluation)):
        lacking = [method for method in _SOURCE_METHODS if not callable(getattr(source, method, None))]
        if lacking:
            yield f"{name} is {_kind(source)} without {', '.join(lacking)}", _SOURCE
            return
        found = list(_fetch_problems(name, source)) if len(source) else []
        if found:  # both splits are mostly made by the same lines
            yield from found
            return


def _fetch_problems(name: str, source: Any) -> Iterator[tuple[str, str]]:
    import torch
    from torch.utils._pytree import tree_leaves

    indices = torch.arange(min(2, len(source)))
    fetched = source.fetch(indices, -1)
    if not isinstance(fetched, tuple) or len(fetched) != 2 or not isinstance(fetched[1], torch.Tensor):
        yield f"{name}.fetch gives {_kind(fetched)}", "return (inputs, targets), tensors of len(indices) rows"
        return
    inputs, targets = fetched
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    wrong = [tuple(tensor.shape) for tensor in (*tensors, targets) if tensor.ndim == 0 or len(tensor) != len(indices)]
    if wrong or not tensors:
        shapes = ", ".join(map(str, wrong)) or "no tensor"
        yield f"{name} gives {shapes} for {len(indices)} samples", "inputs and targets have a row for every sample"
    elif not torch.equal(source.targets(indices, -1), targets):
        yield f"{name}.targets differs from the targets of {name}.fetch", "return the same targets from both"


def _optimizer_problems(optimizer: Optimizer) -> Found:
    for name in ("learning_rate", "weight_decay"):
        if type(getattr(optimizer, name)) not in (int, float):
            yield f"{name} is {_kind(getattr(optimizer, name))}", f"give Optimizer a number: {name}=config.{name}"
    if not callable(optimizer.build):
        given = f"build is {_kind(optimizer.build)}"
        yield given, "write build=lambda groups, fused: torch.optim.NAdam(groups)"


def _schedule_problems(schedule: Schedule) -> Found:
    if not callable(schedule.factor):
        yield f"factor is {_kind(schedule.factor)}", "write def factor(update, horizon): return 1.0"
        return
    horizon = Horizon(total=_TRIED_UPDATES, per_epoch=_TRIED_UPDATES)
    for update in range(_TRIED_UPDATES):
        factor = schedule.factor(update, horizon)
        if type(factor) not in (int, float) or not 0 <= factor < float("inf"):
            yield f"factor({update}, {horizon}) gives {factor!r}", "return a finite number, at least 0"
            return


def _metrics_problems(metrics: tuple[Any, ...]) -> Found:
    remedy = 'return a tuple of Metric("name", higher_is_better, start), start giving an accumulator'
    for metric in metrics or (None,):
        if not isinstance(metric, Metric):
            yield f"it returns {_kind(metric)} and no Metric", remedy
        elif not callable(metric.start):
            yield f"start of {metric.name} is {_kind(metric.start)}", "write lambda: Mean(sums)"


def _watched(optimizer: Optimizer, where: str) -> Optimizer:
    """The record with a build whose optimizer is looked at: it must hold what is trained, and nothing else."""

    def build(groups: list[dict[str, Any]], fused: bool) -> Any:
        import torch

        built = optimizer.build(groups, fused)
        if not isinstance(built, torch.optim.Optimizer):
            given = f"build gives {_kind(built)} and no torch.optim.Optimizer"
            raise ConfigError(Problem(where, given, "write build=lambda groups, fused: torch.optim.NAdam(groups)"))
        wanted, held = (
            [id(each) for group in some for each in group["params"]] for some in (groups, built.param_groups)
        )
        if sorted(wanted) != sorted(held):
            given = f"the optimizer holds {len(held)} of {len(wanted)} trained tensors"
            raise ConfigError(Problem(where, given, "hand it all the groups that build is given"))
        return built

    return dataclasses.replace(optimizer, build=build)


CHECKS: dict[str, Callable[[Any], Found]] = {
    "model": _model_problems,
    "data": _data_problems,
    "metrics": _metrics_problems,
    "optimizer": _optimizer_problems,
    "schedule": _schedule_problems,
}
FINISHED: dict[str, Callable[[Any, str], Any]] = {
    "model": lambda model, where: dataclasses.replace(model, blocks=tuple(model.blocks)),
    "optimizer": _watched,
}
