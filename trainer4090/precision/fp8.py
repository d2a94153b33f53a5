"""Wide linear layers in float8, everything else in bfloat16."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from trainer4090.errors import ConfigError, MachineError, Problem
from trainer4090.precision import PRECISION, Precision
from trainer4090.precision.bf16 import bfloat16_autocast
from trainer4090.records import Notice, Parts, Site, Stage, Transform
from trainer4090.traits import Facts

if TYPE_CHECKING:
    from torch import nn

MULTIPLE = 16
"""What float8 tensor cores take; torch refuses other inner sizes of a product."""


@dataclass(frozen=True)
class Config:
    """How numbers are scaled into float8's range, and whether the output layer stays out."""

    recipe: Literal["tensorwise", "rowwise"] = "tensorwise"
    skip_last: bool = True


@PRECISION.register("fp8", Config)
def fp8(config: Config, facts: Facts) -> Precision:
    """Run wide linear layers in float8 (torchao, RTX 40 or newer) and the rest as bf16 does; fp32 master weights."""
    notices: tuple[Notice, ...] = ()
    if facts.card.device == "cpu":
        why = "a CPU has no float8 products: operands are rounded to float8 and multiplied in fp32, to test with"
        notices = (Notice("precision", "fp8", "float8 emulated in float32", why),)
    out = ["the last"] if config.skip_last else []
    out += ["those with tied weights", f"those whose sizes are no multiples of {MULTIPLE}"]
    label = f"linear layers in float8, scaled {config.recipe}, but {', '.join(out)}"
    return Precision(
        arithmetic="float8",
        context=bfloat16_autocast,
        transforms=(Transform(Stage.REPLACE, label, partial(in_float8, config=config)),),
        notices=notices,
    )


def in_float8(parts: Parts, site: Site, config: Config) -> Parts:
    """Replace wide linear layers by torchao's; parameters, names and shapes stay, and so do fp32 values.

    Raises:
        MachineError: torchao is missing.
        ConfigError: there is no layer to replace.
    """
    chosen = [_wide_layers(part.module) for part in parts]
    num_layers = sum(len(_layers(part.module)) for part in parts)
    if config.skip_last:
        last = list(_layers(parts[-1].module))[-1:]
        chosen[-1] = [name for name in chosen[-1] if name not in last]
    num_chosen = sum(map(len, chosen))
    if num_chosen == 0:
        given = f"fp8 finds no layer to work on: none of the model's {num_layers} linear layers is wide and hidden"
        raise ConfigError(Problem("precision", given, "use precision=bf16, the same arithmetic for such a model"))
    site.notice(f"precision=fp8: {num_chosen} of {num_layers} linear layers run in float8, the rest in bfloat16")
    # Sums over an epoch's smaller tail may have any length; padding it is free where it already fits.
    convert = _converter(config.recipe, emulate=site.device.type == "cpu", pad_inner_dim=site.device.type != "cpu")
    return tuple(replace(part, module=convert(part.module, names)) for part, names in zip(parts, chosen, strict=True))


def _layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Linear layers in the order of their registration. Those of a subclass are used in ways of their own."""
    from torch import nn

    return {name: each for name, each in module.named_modules() if type(each) is nn.Linear}


def _wide_layers(module: nn.Module) -> list[str]:
    """Names of the layers that float8 tensor cores take and whose weight is theirs alone."""
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return [
        name
        for name, layer in _layers(module).items()
        if layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0 and uses[id(layer.weight)] == 1
    ]


def _converter(recipe: str, **options: bool) -> Any:
    """(module, names) -> the module with the layers of these names in float8."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        given = f"fp8 needs torchao, which cannot be imported ({error})"
        raise MachineError(Problem("precision", given, "pip install 'trainer4090[fp8]'")) from error
    settings = replace(Float8LinearConfig.from_recipe_name(recipe), **options)

    def convert(module: nn.Module, names: list[str]) -> nn.Module:
        return convert_to_float8_training(module, module_filter_fn=lambda _, name: name in names, config=settings)

    return convert
