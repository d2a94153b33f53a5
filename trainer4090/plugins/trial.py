"""Two samples through a plugin's model and loss before training: what breaks there gets an error that can be read.

Nothing is left behind: buffers are clones, generators stay where they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer4090.errors import ConfigError, Problem, TrainerError
from trainer4090.parse import REGISTRIES
from trainer4090.plugin_modules import place_of, text_of
from trainer4090.plugins.contract import location
from trainer4090.plugins.loading import plugin_of
from trainer4090.random_state import kept
from trainer4090.records import Batch, Loss, Model
from trainer4090.registry import ContractError
from trainer4090.spec import RunSpec
from trainer4090.traits import DataTraits

if TYPE_CHECKING:
    import torch

_TOLERANCE = 1e-3
_SUM = "return the sum: per_target(function), or reduction='sum' (the executor divides by the number of targets)"
_COUNT = "count is targets -> int: write count=lambda targets: targets.numel()"
_CHAIN = "each block is called once, with the output of the one before alone; blocks=() if there are none such"


def check(spec: RunSpec, data: DataTraits, model: Model, loss: Loss, batch: Batch) -> None:
    """Raise unless model and loss take `batch` (host, prepared), when one of them or the data is a plugin's.

    Raises:
        ConfigError: naming the line, the shapes and what to write.
    """
    groups = [group for group in ("model", "data", "loss") if plugin_of(group, getattr(spec, group).name) is not None]
    if not groups:
        return
    with kept():
        outputs = _outputs(spec, data, model, batch)
        if "loss" not in groups:
            _fits_targets(spec, data, outputs, batch.targets)
            return
        try:
            _check_loss(spec, data, loss, outputs, batch.targets)
        except ContractError as error:
            problem = Problem(_place(spec, "loss"), f"loss={spec.loss.name} {error.given}", error.remedy)
            raise ConfigError(problem) from error


def _place(spec: RunSpec, group: str) -> str:
    """`file:line` of the builder of the option of a group, or its word when it is ours."""
    name = getattr(spec, group).name
    plugin = plugin_of(group, name)
    return group if plugin is None else location(plugin, REGISTRIES[group].get(name).build)


def _outputs(spec: RunSpec, data: DataTraits, model: Model, batch: Batch) -> torch.Tensor:
    import torch

    option, source = f"model={spec.model.name}", f"data={spec.data.name}"
    shapes = _shape(batch.inputs)
    calls = _Calls(model)
    try:
        outputs = calls.forward(batch.inputs)
    except TrainerError:
        raise
    except Exception as error:
        given = f"{option} cannot take inputs {shapes}: {text_of(error)}"
        remedy = f"{source} gives {data.item_shape} a sample: let forward take (batch, *{data.item_shape})"
        raise ConfigError(Problem(place_of(error) or _place(spec, "model"), given, remedy)) from error
    where = _place(spec, "model")
    if not isinstance(outputs, torch.Tensor):
        raise ConfigError(Problem(where, f"{option} gives a {type(outputs).__name__}", "let forward return one tensor"))
    if outputs.ndim == 0 or len(outputs) != len(batch.targets):
        given = f"{option} gives outputs {tuple(outputs.shape)} for {len(batch.targets)} samples"
        raise ConfigError(Problem(where, given, "let forward return a row for every sample"))
    broken = calls.broken_link()
    if broken is not None:
        raise ConfigError(Problem(where, f"{option}: {broken}, so its blocks are no chain", _CHAIN))
    return outputs


class _Calls:
    """A forward that leaves no trace and notes how the blocks were called."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []

    def forward(self, inputs: Any) -> Any:
        """Outputs in evaluation mode, of clones of the buffers."""
        import torch
        from torch.func import functional_call

        module = self._model.module
        hooks = [module.get_submodule(name).register_forward_hook(self._noting(name), with_kwargs=True)
                 for name in self._model.blocks]  # fmt: skip
        was_training = module.training
        module.eval()
        try:
            with torch.no_grad():
                buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
                return functional_call(module, buffers, (inputs,))
        finally:
            module.train(was_training)
            for hook in hooks:
                hook.remove()

    def _noting(self, name: str) -> Any:
        def note(module: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            self._calls.append((name, arguments, named, output))

        return note

    def broken_link(self) -> str | None:
        """Where the blocks are no chain, or None."""
        called = [name for name, *_ in self._calls]
        for name in self._model.blocks:
            if called.count(name) != 1:
                return f"block {name!r} is called {called.count(name)} times a forward"
        if called != list(self._model.blocks):
            return f"blocks run in the order {', '.join(called)}"
        before = None
        for name, arguments, named, output in self._calls:
            if len(arguments) != 1 or named:
                return f"block {name!r} takes {len(arguments) + len(named)} arguments"
            if before is not None and arguments[0] is not before[1]:
                return f"block {name!r} does not get the output of {before[0]!r}"
            before = name, output
        return None


def _fits_targets(spec: RunSpec, data: DataTraits, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """A loss of ours takes an output for every class, or for every number of float targets."""
    if targets.is_floating_point():
        sound, wanted = outputs.numel() == targets.numel(), tuple(targets.shape)
    else:
        wanted = (*targets.shape, data.num_classes)
        sound = outputs.shape[:-1] == targets.shape and outputs.shape[-1] >= data.num_classes
    if not sound:
        given = f"model={spec.model.name} gives outputs {tuple(outputs.shape)} for targets {_shape(targets)}"
        remedy = f"loss={spec.loss.name} over data={spec.data.name} takes {wanted}"
        raise ConfigError(Problem(_place(spec, "model"), given, remedy))


def _check_loss(spec: RunSpec, data: DataTraits, loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    import torch

    outputs = outputs.detach().requires_grad_(outputs.is_floating_point())
    _check_count(loss, targets)
    try:
        with torch.enable_grad():
            for name, function in {"total": loss.total, **loss.metrics}.items():
                _check_sum(name, function, outputs, targets, needs_gradient=name == "total")
    except (ContractError, TrainerError):
        raise
    except Exception as error:
        given = f"loss={spec.loss.name} cannot take outputs {_shape(outputs)} and targets {_shape(targets)}"
        remedy = f"data={spec.data.name} has {data.num_classes} classes: let model and loss agree on the shapes"
        where = place_of(error) or _place(spec, "loss")
        raise ConfigError(Problem(where, f"{given}: {text_of(error)}", remedy)) from error


def _check_count(loss: Loss, targets: torch.Tensor) -> None:
    import torch

    one, two = loss.count(targets), loss.count(torch.cat([targets, targets]))
    if type(one) is not int:
        raise ContractError(f"counts with a {type(one).__name__}", _COUNT)
    if two != 2 * one:
        raise ContractError(f"counts {one} targets, and {two} when they are given twice", _COUNT)


def _check_sum(name: str, function: Any, outputs: torch.Tensor, targets: torch.Tensor, needs_gradient: bool) -> None:
    import torch

    one = function(outputs, targets)
    two = function(torch.cat([outputs, outputs]), torch.cat([targets, targets]))
    if not isinstance(one, torch.Tensor):
        raise ContractError(f"gives a {type(one).__name__} as {name}", "return a tensor, without .item()")
    if one.ndim:
        given = f"gives a tensor of shape {tuple(one.shape)} as {name}, not one number"
        raise ContractError(given, "add .sum(), or return per_target(function)")
    if needs_gradient and not one.requires_grad:
        given = f"gives a {name} that does not depend on the outputs"
        raise ContractError(given, "leave out argmax, detach, .item() and torch.no_grad() on the way")
    first, second = float(one.detach()), float(two.detach())
    if abs(second - 2 * first) <= _TOLERANCE * max(abs(first), abs(second)) or first != first:
        return
    what = "a mean" if abs(second - first) <= _TOLERANCE * abs(first) else "no sum over targets"
    raise ContractError(f"gives {what} as {name}: {first:.4g}, and {second:.4g} for the same samples twice", _SUM)


def _shape(value: Any) -> str:
    """Shapes and types of a pytree, as a text."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)
