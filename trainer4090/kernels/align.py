"""Sizes that tensor cores like: layers stored and computed with zeros up to a multiple."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trainer4090.kernels import KERNELS, Kernels
from trainer4090.records import NameMap, Parts, Site, Stage, Transform
from trainer4090.schema import LONGEST_LISTING, PositiveInt
from trainer4090.traits import Facts

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Config:
    """What sizes are padded to."""

    multiple: PositiveInt = 8


@KERNELS.register("align", Config)
def align(config: Config, facts: Facts) -> Kernels:
    """Pad layer widths, channels and vocabulary with zeros to a multiple; checkpoint files hold the unpadded model."""
    label = (
        f"pad linear layers, convolutions and tied embeddings with zeros to multiples of {config.multiple} "
        "(grouped and transposed convolutions stay; the log counts the layers)"
    )
    pad = Transform(Stage.REPLACE, label, partial(pad_parts, multiple=config.multiple), _file_map)
    return Kernels(pads_weights=True, transforms=(pad,))


def pad_parts(parts: Parts, site: Site, multiple: int) -> Parts:
    """Pad the layers of all parts in place, and tell of how many."""
    from trainer4090.kernels.layers.aligned import align as pad_layers

    for part in parts:
        done = pad_layers(part.module, multiple)
        total = len(done.padded) + len(done.fitting) + len(done.left)
        text = (
            f"kernels.align: {len(done.padded)} of {total} layers padded to multiples of {multiple}, "
            f"{len(done.fitting)} fit already, {len(done.left)} left as they are"
        )
        site.notice(f"{text}: {_listed(done.left)}" if done.left else text)
    return parts


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:LONGEST_LISTING])
    return shown if len(names) <= LONGEST_LISTING else f"{shown} and {len(names) - LONGEST_LISTING} more"


def _file_map(module: nn.Module) -> NameMap:
    from trainer4090.kernels.layers.aligned import file_map

    return file_map(module)
