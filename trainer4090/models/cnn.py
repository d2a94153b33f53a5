"""Model `cnn`: a small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.models import MODELS, explicit, filled
from trainer4090.records import Model
from trainer4090.schema import Auto, PositiveInt, Probability
from trainer4090.traits import DataTraits, ModelTraits


@dataclass(frozen=True)
class Config:
    """Fields of `model=cnn`."""

    width: PositiveInt = 32
    dropout: Probability = 0.1
    num_classes: Auto | PositiveInt = "auto"


def traits(config: Config) -> ModelTraits:
    """What is known of the network without building it."""
    return ModelTraits(
        kind="images",
        batch_norm=True,
        dropout=config.dropout > 0,
        channels_last=True,
        attention=False,
        num_outputs=explicit(config.num_classes),
    )


@MODELS.register("cnn", Config, traits=traits)
def cnn(config: Config, data: DataTraits) -> Model:
    """Three convolutions with BatchNorm, dropout and ReLU; for small images, trains in seconds on a CPU."""
    from trainer4090.models.networks.cnn import CNN

    widths = (data.item_shape[0], config.width, 2 * config.width, 4 * config.width)
    module = CNN(widths, filled(config.num_classes, data.num_classes), config.dropout)
    return Model(module, ("blocks.0", "blocks.1", "blocks.2"))
