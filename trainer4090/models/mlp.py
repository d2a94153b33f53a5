"""Model `mlp`: fully connected layers over flattened images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer4090.models import MODELS, explicit, filled
from trainer4090.records import Model
from trainer4090.schema import Auto, PositiveInt, Probability
from trainer4090.traits import DataTraits, ModelTraits


@dataclass(frozen=True)
class Config:
    """Fields of `model=mlp`."""

    hidden: tuple[PositiveInt, ...] = (512, 512)
    dropout: Probability = 0.0
    num_classes: Auto | PositiveInt = "auto"


def traits(config: Config) -> ModelTraits:
    """What is known of the network without building it."""
    return ModelTraits(
        kind="images",
        batch_norm=False,
        dropout=config.dropout > 0,
        channels_last=False,
        attention=False,
        num_outputs=explicit(config.num_classes),
    )


@MODELS.register("mlp", Config, traits=traits)
def mlp(config: Config, data: DataTraits) -> Model:
    """Fully connected layers with ReLU over flattened images; the smallest model, without BatchNorm."""
    from trainer4090.models.networks.mlp import MLP

    widths = (math.prod(data.item_shape), *config.hidden)
    module = MLP(widths, filled(config.num_classes, data.num_classes), config.dropout)
    return Model(module, tuple(f"blocks.{index}" for index in range(len(config.hidden))))
