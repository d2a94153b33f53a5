"""Model `timm`: every image classifier of the package timm by its name there.

Names and families come from timm's source text, so that a wrong name is refused without importing it. What a family has
was found by building all of its models once; `tests/test_timm.py` does so again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trainer4090.errors import ConfigError, Problem
from trainer4090.models import MODELS, classifiers, explicit, family_of, filled
from trainer4090.records import Model
from trainer4090.schema import Auto, PositiveInt
from trainer4090.traits import DataTraits, ModelTraits


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Families are timm's files; one that is in no set has BatchNorm and blocks, and gains from channels_last.
WITHOUT_CHANNELS_LAST = _words(
    "beit cait convit crossvit deepseek_vit deit eva gemma4_vit hiera hieradet_sam2 mlp_mixer naflexvit nest pit "
    "qwen3_vit sequencer swin_transformer swin_transformer_v2 swin_transformer_v2_cr tnt vision_transformer "
    "vision_transformer_relpos vision_transformer_sam volo"
)
"""Nearly all of their layers are matrix products over tokens."""
WITHOUT_BATCH_NORM = (WITHOUT_CHANNELS_LAST - {"volo"}) | _words(
    "coat convnext csatv2 davit edgenext focalnet gcvit mambaout metaformer mobilenetv5 mvitv2 nfnet pvt_v2 rdnet "
    "twins vitamin"
)
NAMED_WITHOUT_BATCH_NORM = re.compile(r"_(gn|sgn|ln|frn|bit|(?<!g16_)evos)$|^(coatnext|maxxvit)|^vgg\d+$|_r\d*_s\d")
"""Members of other families whose names say that their norm is another one."""
WITHOUT_BLOCKS = _words(
    "beit coat deepseek_vit gemma4_vit mvitv2 naflexvit qwen3_vit tnt twins vision_transformer_relpos"
)
"""Their blocks take more than the output of the one before, positions for example (see `find_chain`)."""
WITH_RANDOM_OPS = _words(
    "byobnet cpubone efficientformer_v2 fasternet focalnet maxxvit nest nextvit rexnet swin_transformer "
    "swin_transformer_v2 swin_transformer_v2_cr tiny_vit vision_transformer_relpos"
)
"""Dropout or stochastic depth at timm's defaults."""


@dataclass(frozen=True)
class Config:
    """Fields of `model=timm`."""

    arch: str = "resnet50"
    num_classes: Auto | PositiveInt = "auto"


def families() -> dict[str, str]:
    """Architecture -> the file of `timm/models` that defines it, for all classifiers.

    Raises:
        MachineError: timm is not installed.
    """
    return classifiers("timm", "@register_model", "pip install 'trainer4090[timm]'")


def traits(config: Config) -> ModelTraits:
    """What is known of the network without building it.

    Raises:
        ConfigError: timm has no such classifier.
        MachineError: timm is not installed.
    """
    family = family_of(config.arch, families())
    return ModelTraits(
        kind="images",
        batch_norm=family not in WITHOUT_BATCH_NORM and not NAMED_WITHOUT_BATCH_NORM.search(config.arch),
        dropout=family in WITH_RANDOM_OPS,
        channels_last=family not in WITHOUT_CHANNELS_LAST,
        blocks=family not in WITHOUT_BLOCKS,
        num_outputs=explicit(config.num_classes),
    )


@MODELS.register("timm", Config, traits=traits)
def timm(config: Config, data: DataTraits) -> Model:
    """An image classifier of timm by its name there (`arch`), random or with model.weights=PATH; needs that package.

    Raises:
        ConfigError: the architecture does not take images of the data's size.
    """
    import timm

    from trainer4090.models.networks.chain import find_chain

    channels, height, width = data.item_shape
    pretrained = timm.get_pretrained_cfg(config.arch)
    fixed = pretrained is not None and pretrained.fixed_input_size
    sizes: dict[str, Any] = {"img_size": (height, width)} if fixed else {}
    try:
        module = timm.create_model(
            config.arch,
            pretrained=False,
            num_classes=filled(config.num_classes, data.num_classes),
            in_chans=channels,
            **sizes,
        )
        blocks = find_chain(module, data.item_shape)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).replace(";", ",").split())[:160]
        given = f"{config.arch} does not take images of {channels}x{height}x{width} ({reason})"
        raise ConfigError(Problem("model.arch", given, "choose images of another size, or another arch")) from error
    return Model(module, blocks)
