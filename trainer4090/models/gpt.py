"""Model `gpt`: a decoder-only transformer of GPT-2's kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trainer4090.errors import ConfigError, Problem
from trainer4090.models import MODELS, explicit, filled, nearest_multiples
from trainer4090.records import Model
from trainer4090.schema import Auto, PositiveInt, Probability
from trainer4090.traits import DataTraits, ModelTraits


@dataclass(frozen=True)
class Config:
    """Fields of `model=gpt`."""

    num_layers: PositiveInt = 6
    num_heads: PositiveInt = 6
    width: PositiveInt = 384
    context: Auto | PositiveInt = "auto"
    vocab_size: Auto | PositiveInt = "auto"
    dropout: Probability = 0.0
    bias: bool = True
    tie: bool = True


def traits(config: Config) -> ModelTraits:
    """What is known of the network without building it.

    Raises:
        ConfigError: the heads do not divide the width.
    """
    if config.width % config.num_heads:
        widths = nearest_multiples(config.width, config.num_heads)
        given = f"{config.width} is not divisible by model.num_heads={config.num_heads}"
        raise ConfigError(Problem("model.width", given, f"nearest valid: {widths}"))
    return ModelTraits(
        kind="tokens",
        batch_norm=False,
        dropout=config.dropout > 0,
        channels_last=False,
        attention=True,
        num_outputs=explicit(config.vocab_size),
        head="head",
        item_problem=partial(_item_problem, config),
    )


def _item_problem(config: Config, item_shape: tuple[int, ...]) -> Problem | None:
    length = item_shape[0]
    if filled(config.context, length) >= length:
        return None
    given = f"{config.context} is shorter than the data's sequences of {length} tokens"
    return Problem("model.context", given, f"give auto or at least {length}")


@MODELS.register("gpt", Config, traits=traits)
def gpt(config: Config, data: DataTraits) -> Model:
    """Decoder-only transformer: pre-norm blocks, learned positions, GELU, tied embedding and head."""
    from trainer4090.models.networks.gpt import GPT, Shape

    shape = Shape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        width=config.width,
        context=filled(config.context, data.item_shape[0]),
        vocab_size=filled(config.vocab_size, data.num_classes),
        dropout=config.dropout,
        bias=config.bias,
        tie=config.tie,
    )
    return Model(GPT(shape), tuple(f"blocks.{index}" for index in range(config.num_layers)))
