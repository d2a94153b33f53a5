"""Model `torchvision`: every image classifier of torchvision by its name there.

The names and the families come from torchvision's source text, so that a wrong name is refused without importing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer4090.errors import ConfigError, Problem
from trainer4090.models import MODELS, classifiers, explicit, family_of, filled, nearest_multiples
from trainer4090.records import Model
from trainer4090.schema import Auto, PositiveInt
from trainer4090.traits import DataTraits, ModelTraits

# Families are torchvision's files; one that is in no set has BatchNorm, random ops and gains from channels_last.
WITHOUT_BATCH_NORM = {"alexnet", "convnext", "squeezenet", "swin_transformer", "vision_transformer"}
WITHOUT_BLOCKS = {"alexnet", "vgg"}
"""Nothing but lone layers (see `find_chain`)."""
WITHOUT_RANDOM_OPS = {"densenet", "regnet", "resnet", "shufflenetv2", "vision_transformer"}
"""Neither dropout nor stochastic depth at torchvision's defaults."""
WITHOUT_CHANNELS_LAST = {"maxvit", "swin_transformer", "vision_transformer"}
"""Their time is in matrix products over tokens. ConvNeXt is not among them: its LayerNorm permutes to channels last
and back, so its activations are in that format anyway and weights in the other one would be converted every time."""


@dataclass(frozen=True)
class Config:
    """Fields of `model=torchvision`."""

    arch: str = "resnet50"
    num_classes: Auto | PositiveInt = "auto"


def families() -> dict[str, str]:
    """Architecture -> the file of `torchvision/models` that defines it, for all classifiers.

    Raises:
        MachineError: torchvision is not installed.
    """
    return classifiers("torchvision", "@register_model()", "pip install torchvision")


def traits(config: Config) -> ModelTraits:
    """What is known of the network without building it.

    Raises:
        ConfigError: torchvision has no such classifier.
    """
    family = family_of(config.arch, families())
    plain_vgg = family == "vgg" and not config.arch.endswith("_bn")
    return ModelTraits(
        kind="images",
        batch_norm=family not in WITHOUT_BATCH_NORM and not plain_vgg,
        dropout=family not in WITHOUT_RANDOM_OPS,
        channels_last=family not in WITHOUT_CHANNELS_LAST,
        attention=family == "vision_transformer",  # Swin and MaxViT add a bias to their own softmax
        blocks=family not in WITHOUT_BLOCKS,
        num_outputs=explicit(config.num_classes),
        published="torchvision",
        item_problem=partial(_item_problem, config.arch),
    )


@MODELS.register("torchvision", Config, traits=traits)
def torchvision(config: Config, data: DataTraits) -> Model:
    """An image classifier of torchvision by its name there (`arch`); its weights with model.weights=torchvision.

    Raises:
        ConfigError: the architecture does not take images of the data's size.
    """
    from torchvision import models

    from trainer4090.models.networks.chain import find_chain
    from trainer4090.models.networks.input_channels import set_input_channels
    from trainer4090.models.networks.torchvision_weights import torchvision_weights

    arguments = _arguments(config.arch, data.item_shape)
    num_classes = filled(config.num_classes, data.num_classes)
    module = models.get_model(config.arch, weights=None, num_classes=num_classes, **arguments)
    set_input_channels(module, data.item_shape[0])
    try:
        blocks = find_chain(module, data.item_shape)
    except RuntimeError as error:  # torch says so when a feature map has shrunk to nothing
        given = f"{config.arch} does not take images of {data.item_shape}: {error}"
        raise ConfigError(Problem("model.arch", given, "choose larger images or another arch")) from error
    return Model(module, blocks, published=partial(torchvision_weights, config.arch))


def _square_divisor(arch: str) -> int | None:
    """What the side of square images must be a multiple of, None when `arch` takes other images too."""
    family = families()[arch]
    if family == "vision_transformer":
        return int(arch.rpartition("_")[2])  # the patch
    return 7 * 32 if family == "maxvit" else None  # windows of 7 at every stage down to 1/32 of the image


def _item_problem(arch: str, item_shape: tuple[int, ...]) -> Problem | None:
    divisor, (_, height, width) = _square_divisor(arch), item_shape
    if divisor is None or (height == width and height % divisor == 0):
        return None
    remedy = f"choose square images of {nearest_multiples(height, divisor)} pixels, or another arch"
    given = f"{arch} takes square images of a multiple of {divisor} pixels, the data has {height}x{width}"
    return Problem("model.arch", given, remedy)


def _arguments(arch: str, item_shape: tuple[int, ...]) -> dict[str, Any]:
    """What the constructor of `arch` needs besides the number of classes."""
    family, size = families()[arch], item_shape[1]
    if family in ("googlenet", "inception"):
        # The auxiliary heads would make the output a tuple; leaving the initialisation open makes torchvision warn.
        return {"aux_logits": False, "init_weights": True}
    sizes = {"vision_transformer": {"image_size": size}, "maxvit": {"input_size": (size, size)}}
    return sizes.get(family, {})
