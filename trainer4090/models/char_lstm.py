"""Model `char_lstm`: a hand-written recurrent network, the case of many small kernels."""

from __future__ import annotations

from dataclasses import dataclass

from trainer4090.models import MODELS, explicit, filled
from trainer4090.records import Model
from trainer4090.schema import Auto, PositiveInt, Probability
from trainer4090.traits import DataTraits, ModelTraits


@dataclass(frozen=True)
class Config:
    """Fields of `model=char_lstm`."""

    num_layers: PositiveInt = 2
    width: PositiveInt = 256
    vocab_size: Auto | PositiveInt = "auto"
    dropout: Probability = 0.0


def traits(config: Config) -> ModelTraits:
    """What is known of the network without building it."""
    return ModelTraits(
        kind="tokens",
        batch_norm=False,
        dropout=config.dropout > 0,
        channels_last=False,
        compiled_in_units=True,
        attention=False,
        num_outputs=explicit(config.vocab_size),
        head="head",
    )


@MODELS.register("char_lstm", Config, traits=traits)
def char_lstm(config: Config, data: DataTraits) -> Model:
    """Character LSTM with a hand-written cell: thousands of small kernels an update, bound by their launches."""
    from trainer4090.models.networks.char_lstm import CharLSTM

    vocab_size = filled(config.vocab_size, data.num_classes)
    module = CharLSTM(vocab_size, config.width, config.num_layers, config.dropout)
    layers = tuple(f"layers.{index}" for index in range(config.num_layers))
    return Model(module, layers, compile_units=tuple(f"{layer}.cell" for layer in layers), step=module.step)
