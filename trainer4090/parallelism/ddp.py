"""A replica of the model on every card, with gradients averaged while backward still runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from trainer4090.parallelism import PARALLELISM, Degrees, Parallelism
from trainer4090.records import Notice, Part, Parts, Site, Stage, Transform
from trainer4090.schema import PositiveFloat, PositiveInt, Range
from trainer4090.traits import Facts

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Compression = Literal["none", "bf16", "powersgd"]
Start = Annotated[int, Range(low=2)]
"""torch's PowerSGD cannot compress the first update, after which buckets are rebuilt."""


@dataclass(frozen=True)
class Config:
    """How gradients are averaged."""

    bucket_mib: PositiveFloat = 25.0
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    compress: Compression = "none"
    powersgd_rank: PositiveInt = 4
    powersgd_start: Start = 100


def over_the_data(config: Config, cards: int) -> Degrees:
    """Every card trains on samples of its own."""
    return Degrees(data=cards)


@PARALLELISM.register("ddp", Config, traits=over_the_data)
def ddp(config: Config, facts: Facts) -> Parallelism:
    """Train a replica of the model on every card; gradients are averaged while backward still runs."""
    ranks = facts.batching.data_ranks
    notices: tuple[Notice, ...] = ()
    if ranks == 1:
        notices += (Notice("cards", "ddp", "one rank", "nothing is exchanged; cards=2 trains on two"),)
    if ranks > 1 and config.compress != "none":
        why = {
            "bf16": "8 bits of every gradient's mantissa are exchanged",
            "powersgd": "approximate, and what is left over of a gradient starts from zero in a resumed run",
        }[config.compress]
        notices += (Notice("parallelism.compress", config.compress, "other gradients than on one card", why),)
    label = f"replicas on {ranks} ranks, gradients averaged in buckets of {config.bucket_mib:g} MiB"
    label += "" if config.compress == "none" else f", compressed by {config.compress}"
    transforms = (Transform(Stage.REPLICATE, label, partial(replicated, config=config)),) if ranks > 1 else ()
    return Parallelism("replicated", max_cards=None, transforms=transforms, notices=notices)


def replicated(parts: Parts, site: Site, config: Config) -> Parts:
    """Let the forwards of training go through DistributedDataParallel; modules and names stay."""
    return tuple(replace(part, entry=_wrapped(part, site, config)) for part in parts)


def _wrapped(part: Part, site: Site, config: Config) -> DistributedDataParallel:
    from torch.nn.parallel import DistributedDataParallel

    assert site.mesh is not None
    with warnings.catch_warnings():
        # torch 2.14 has another word for it, which torch 2.11 does not know.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapper = DistributedDataParallel(
            part.module,
            device_ids=[site.device.index] if site.device.type == "cuda" else None,
            broadcast_buffers=False,  # the executor averages them: a broadcast would drop what other ranks saw
            process_group=site.mesh.get_group("data"),
            bucket_cap_mb=config.bucket_mib,  # pyright: ignore[reportArgumentType]  # torch multiplies: fractions serve
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            static_graph=config.static_graph,
        )
    if config.compress != "none":
        _compress(wrapper, site, config)
    return wrapper


def _compress(wrapper: DistributedDataParallel, site: Site, config: Config) -> None:
    assert site.mesh is not None
    group = site.mesh.get_group("data")
    if config.compress == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapper.register_comm_hook(group, bf16_compress_hook)
        return
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    rank, start = config.powersgd_rank, config.powersgd_start
    state = PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=start)
    wrapper.register_comm_hook(state, powerSGD_hook)
