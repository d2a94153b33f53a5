"""Traits of a plugin's entry that states none: it is built once, looked at and dropped, with no generator moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trainer4090.data import Data, Source
from trainer4090.item_format import ImageFormat
from trainer4090.random_state import kept
from trainer4090.records import Loss, Model
from trainer4090.traits import DataTraits, LossTraits, ModelTraits

if TYPE_CHECKING:
    import torch

_TARGETS_AT_ONCE = 8192
_SEED = 0
"""Sizes and shapes depend on no seed."""


def data_traits(build: Callable[[Any, int], Data]) -> Callable[[Any], DataTraits]:
    """The traits function of a data set's builder; each Config is built once."""
    known: dict[Any, DataTraits] = {}

    def traits(config: Any) -> DataTraits:
        if config not in known:
            with kept():
                known[config] = _of_data(build(config, _SEED))
        return known[config]

    return traits


def model_traits(build: Callable[[Any, DataTraits], Model]) -> Callable[[Any, DataTraits], ModelTraits]:
    """(config, data traits) -> traits, of a model's builder; each pair is built once."""
    known: dict[tuple[Any, DataTraits], ModelTraits] = {}

    def traits(config: Any, data: DataTraits) -> ModelTraits:
        if (config, data) not in known:
            with kept():
                known[config, data] = _of_model(build(config, data), data)
        return known[config, data]

    return traits


def loss_traits(build: Callable[[Any, DataTraits], Loss]) -> Callable[[Any, DataTraits], LossTraits]:
    """(config, data traits) -> traits, of a loss's builder: the metrics that it brings, neither direction better."""

    def traits(config: Any, data: DataTraits) -> LossTraits:
        with kept():
            return LossTraits(metrics=dict.fromkeys(build(config, data).metrics))

    return traits


def _of_model(model: Model, data: DataTraits) -> ModelTraits:
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.conv import Conv2d
    from torch.nn.modules.dropout import _DropoutNd

    modules = list(model.module.modules())
    return ModelTraits(
        kind=data.kind,
        batch_norm=any(isinstance(module, _BatchNorm) for module in modules),
        dropout=any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules),
        channels_last=any(isinstance(module, Conv2d) for module in modules),
        blocks=bool(model.blocks),
    )


def _of_data(data: Data) -> DataTraits:
    import torch
    from torch.utils._pytree import tree_leaves

    source = data.evaluation if len(data.evaluation) else data.train
    if not len(source):
        return DataTraits("samples", (), 1, 0, 0, 1, in_memory=False)
    inputs, targets = source.fetch(torch.arange(1), -1)
    first = next(leaf for leaf in tree_leaves(data.prepare(inputs)) if isinstance(leaf, torch.Tensor))
    return DataTraits(
        kind=_kind(first, targets),
        item_shape=tuple(first.shape[1:]),
        num_classes=_num_classes(data, targets),
        num_train=len(data.train),
        num_evaluation=len(data.evaluation),
        items_per_sample=1 if targets.is_floating_point() else targets.numel(),
        in_memory=False,
        class_names=data.format.class_names if isinstance(data.format, ImageFormat) else (),
    )


def _kind(inputs: torch.Tensor, targets: torch.Tensor) -> str:
    """`images` for (channels, height, width), `tokens` for a target beside every integer, else a plain word."""
    if inputs.ndim == 4:
        return "images"
    if inputs.ndim == 2 and not inputs.is_floating_point() and inputs.shape == targets.shape:
        return "tokens"
    return "vectors" if inputs.ndim == 2 else "samples"


def _num_classes(data: Data, targets: torch.Tensor) -> int:
    """The largest class and one; of float targets the numbers a sample has."""
    if targets.is_floating_point():
        return targets[0].numel()
    largest = max(int(each.max()) for source in (data.train, data.evaluation) for each in _targets(source))
    return max(largest + 1, 1)


def _targets(source: Source) -> Iterator[torch.Tensor]:
    import torch

    if len(source):
        for samples in torch.arange(len(source)).split(_TARGETS_AT_ONCE):
            yield source.targets(samples, -1)
