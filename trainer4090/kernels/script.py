"""TorchScript, the way to fewer interpreter steps before torch.compile; torch itself calls it deprecated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer4090.errors import ConfigError, MachineError, Problem
from trainer4090.kernels import KERNELS, Kernels
from trainer4090.records import Parts, Site, Stage, Transform
from trainer4090.traits import Facts

if TYPE_CHECKING:
    from torch import nn

_LONGEST_REASON = 200


@dataclass(frozen=True)
class Config:
    """No fields."""


@KERNELS.register("script", Config)
def script(config: Config, facts: Facts) -> Kernels:
    """Legacy: run the model as TorchScript (torch.jit.script); kernels=fused is its successor."""
    return Kernels(scripted=True, transforms=(Transform(Stage.COMPILE, "forward as TorchScript", script_parts),))


def script_parts(parts: Parts, site: Site) -> Parts:
    """Let forwards run as TorchScript over the same parameters and buffers; modules and state-dict names stay.

    A model that names compile units has these scripted alone.

    Raises:
        MachineError: this torch has no TorchScript.
        ConfigError: the model uses what TorchScript cannot express.
    """
    for part in parts:
        for name in part.compile_units or ("",):
            unit = part.module.get_submodule(name)
            unit.forward = _in_step(unit, _scripted(unit))
    return parts


def _scripted(module: nn.Module) -> nn.Module:
    """A scripted module that holds the parameters and buffers of `module` themselves, not copies."""
    try:
        from torch.jit._recursive import create_script_module, infer_methods_to_compile
    except ImportError as error:
        problem = Problem("kernels", "script, but this torch has no TorchScript any more", "use kernels=fused")
        raise MachineError(problem) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is deprecated; the help of this option says so
            # What torch.jit.script calls, with a type of its own for each module: modules of one type share their
            # specialised code, and that of a run in bf16 raises in one in fp16.
            return create_script_module(module, infer_methods_to_compile, share_types=False)
    except Exception as error:  # the compiler raises whatever it meets in the code of others
        reason = " ".join(str(error).replace(";", ",").split())[:_LONGEST_REASON]
        given = f"script, but TorchScript cannot express {type(module).__name__} ({reason})"
        raise ConfigError(Problem("kernels", given, "use kernels=fused")) from error


def _in_step(module: nn.Module, scripted: nn.Module) -> Callable[..., Any]:
    """The scripted forward; it takes over whether `module` and each of its parts are in training mode."""
    twins = dict(scripted.named_modules(remove_duplicate=False))
    pairs = [(each, twins[name]) for name, each in module.named_modules(remove_duplicate=False)]
    in_step_with: bool | None = None

    def forward(*inputs: Any) -> Any:
        nonlocal in_step_with
        if module.training != in_step_with:
            # Part by part, since a frozen part is never in training mode.
            for each, twin in pairs:
                twin.training = each.training
            in_step_with = module.training
        return scripted.forward(*inputs)

    return forward
