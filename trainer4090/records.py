"""The small frozen records that options, plan and build exchange.

An option has four effects and no hooks: facts that others read, transforms of the model, contexts around forward,
and process settings. Two options of one axis merge; claiming the same fact twice is a problem, never a precedence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from trainer4090.errors import Problem

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

Record = TypeVar("Record")


class Stage(IntEnum):
    """Order in which transforms of the model are applied; the one place where order lives."""

    PARTITION = 1
    REPLACE = 2
    CHECKPOINT = 3
    REPLICATE = 4
    COMPILE = 5
    SHARD = 6


@dataclass(frozen=True)
class Part:
    """A module that this process trains, with the names of its blocks in the order in which they run.

    Blocks form a chain: each is called once a forward, with the output of the one before as its only argument.
    """

    module: nn.Module
    blocks: tuple[str, ...]
    compile_units: tuple[str, ...] = ()
    """Submodules to compile one by one; () compiles the module as a whole."""
    entry: nn.Module | None = None
    """A wrapper that the forwards of training go through, None for the module itself: names are never the wrapper's."""


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Site:
    """Where a transform is applied."""

    rank: int
    device: torch.device
    mesh: DeviceMesh | None = None
    """The ranks by what they share, an axis each (`data`); None where there is one rank."""
    notice: Callable[[str], None] = lambda text: None
    """Told of what only the built model shows: how many layers were changed, and which were not."""


@dataclass(frozen=True)
class NameMap:
    """How a transformed module's tensors are written to checkpoint files, and read from them.

    Both functions take a name of the state dict and a tensor that belongs to it: the value, its average, or a tensor
    of the optimizer's state. One without the shape that they know for the name is handed back as it is.
    """

    to_file: Callable[[str, torch.Tensor], torch.Tensor]
    from_file: Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Transform:
    """One change of the model, made once while the run is built."""

    stage: Stage
    label: str
    apply: Callable[[Parts, Site], Parts]
    portable: Callable[[nn.Module], NameMap] | None = None
    """The module after all transforms -> the map that keeps the bare model's shapes in files; None when they are."""


ForwardContext = Callable[["torch.device"], AbstractContextManager[Any]]


@dataclass(frozen=True)
class AroundForward:
    """A context around every forward that knows the model."""

    label: str
    make: Callable[[nn.Module, torch.device], Callable[[], AbstractContextManager[Any]]]
    """(the built module, its device) -> what makes the context of one forward."""


@dataclass(frozen=True)
class Settings:
    """Process-wide settings, applied before torch starts work: a flag set around forward is off again in backward."""

    environment: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, bool], ...] = ()
    """Dotted attribute below `torch`, and its value."""

    def __add__(self, other: Settings) -> Settings:
        return Settings(self.environment + other.environment, self.flags + other.flags)


@dataclass(frozen=True)
class Notice:
    """Something that runs otherwise than asked; the plan prints it."""

    key: str
    asked: str
    got: str
    why: str

    def __str__(self) -> str:
        return f"{self.key}: asked {self.asked}, got {self.got}: {self.why}"


@dataclass(frozen=True)
class Batching:
    """How one update's batch is divided: batch_size = micro_batch x accumulation x data_ranks."""

    batch_size: int
    micro_batch: int
    accumulation: int
    data_ranks: int


def divided(batch_size: int, micro_batch: int | None, data_ranks: int) -> Batching:
    """How a batch is divided; a rule says whether it can be. `micro_batch`: None is a rank's whole share."""
    share = max(1, batch_size // data_ranks)
    size = micro_batch or share
    return Batching(batch_size, size, share // size, data_ranks)


def merge(group: str, named: Sequence[tuple[str, Record]], problems: list[Problem]) -> Record:
    """One record of a list axis from those of its options, in the order given.

    Tuples are joined and settings added; any other field may be claimed with one value only, and an option that claims
    nothing (`none`, `eager`) stands alone.
    """
    names = [name for name, _ in named]
    blank = type(named[0][1])()
    if len(named) > 1:
        for name, record in named:
            if record == blank:
                given = f"[{', '.join(names)}]"
                problems.append(Problem(group, f"{given} holds {name}, which means none of them", f"drop {name}"))
    merged: dict[str, Any] = {}
    for record_field in dataclasses.fields(blank):  # type: ignore[arg-type]
        default = getattr(blank, record_field.name)
        values = [(name, getattr(record, record_field.name)) for name, record in named]
        if isinstance(default, (tuple, Settings)):
            merged[record_field.name] = sum((value for _, value in values), start=default)
            continue
        claims = [(name, value) for name, value in values if value != default]
        if any(value != claims[0][1] for _, value in claims):
            both = " and ".join(name for name, _ in claims)
            problems.append(Problem(group, f"{both} both decide {record_field.name}", "keep one of them"))
        merged[record_field.name] = claims[0][1] if claims else default
    return type(blank)(**merged)


@dataclass(frozen=True)
class Whole:
    """The batch of all ranks that a rank's own is a share of."""

    epoch: int
    begin: int
    """Samples of the epoch before it; with `epoch` it names the update."""
    num_samples: int


@dataclass(frozen=True)
class Batch:
    """Input of one update. `num_targets` is a host number, so dividing by it needs no synchronisation."""

    inputs: Any
    """Pytree of tensors, each (batch, ...)."""
    targets: torch.Tensor
    num_targets: int
    """Valid targets of the update, over all ranks."""
    whole: Whole | None = None
    """None where the batch is nobody's share."""


@dataclass(frozen=True)
class Model:
    """A built model: the module and its blocks (see `Part`)."""

    module: nn.Module
    blocks: tuple[str, ...]
    compile_units: tuple[str, ...] = ()
    """Submodules to compile one by one, () for the whole module at once.

    For a forward that would take too long to compile: a recurrence unrolled over 128 steps took 52 s.
    """
    published: Callable[[str, Callable[[str], None]], dict[str, torch.Tensor]] | None = None
    """(version, '' for the default; notice) -> weights that the model's authors publish, downloaded when asked for."""
    step: Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]] | None = None
    """(tokens (batch,), state or None) -> (logits (batch, vocab_size), next state), for a model that carries a state;
    None: text is generated by forwards over the newest tokens."""


@dataclass(frozen=True)
class Loss:
    """Sums over targets; the executor divides by the number of valid targets of the whole update."""

    total: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(outputs, targets) -> sum of per-target losses, a scalar in fp32 (fp64 for fp64 outputs)."""
    count: Callable[[torch.Tensor], int]
    """targets on the host -> number of valid ones."""
    metrics: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    """Name -> (outputs, targets) -> sum over the same targets."""
