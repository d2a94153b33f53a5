"""The run spec: the whole configuration, typed, resolved and frozen.

`to_tree` gives back the tree that the spec was parsed from, so that a saved `spec.yaml` runs again without Hydra.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf

from trainer4090.schema import Auto, Count, NonNegativeFloat, Pattern, PositiveFloat, PositiveInt, Probability, Range

LIST_AXES = ("memory", "kernels", "metrics")
"""Groups that take one option or a list; each option's fields lie under its own name."""
SINGLE_GROUPS = ("precision", "parallelism", "model", "data", "loss", "optimizer", "schedule")
"""Groups that take exactly one option; its fields lie directly under the group."""

LayerDecay = Annotated[float, Range(low=0, high=1, above_low=True)]
DeviceWord = Annotated[str, Pattern(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N")]
EvalTag = Annotated[str, Pattern(r"eval/\S+", "eval/loss, or eval/ and the name of a metric")]


@dataclass(frozen=True)
class Choice:
    """A chosen option: the registry name and its Config record."""

    name: str
    config: Any


@dataclass(frozen=True)
class RunSection:
    """Where a run is kept."""

    name: str | None
    dir: str | None


@dataclass(frozen=True)
class TrainSection:
    """How long, how much at once, and when something besides training happens. All `*_every` count updates."""

    steps: PositiveInt | None
    epochs: PositiveInt | None
    batch_size: PositiveInt
    micro_batch: PositiveInt | None
    seed: Count
    clip_norm: PositiveFloat | None
    log_every: PositiveInt
    log_samples: Count
    eval_every: PositiveInt | None
    checkpoint_every: PositiveInt | None
    deterministic: bool
    best_by: EvalTag
    patience: PositiveInt | None
    least_improvement: NonNegativeFloat


@dataclass(frozen=True)
class EmaSection:
    """Exponential moving average of the parameters."""

    decay: Probability | None


@dataclass(frozen=True)
class LaunchSection:
    """When a rank that shows nothing is taken for lost."""

    stall_s: PositiveFloat
    """Inside updates."""
    slow_s: PositiveFloat
    """While it is built, evaluates, saves, or makes its first update of a batch size."""


AxisWord = Literal["precision", "memory", "kernels", "parallelism"]


@dataclass(frozen=True)
class AblateSection:
    """What the verb `ablate` compares, and how long it measures."""

    rows: Auto | tuple[str, ...]
    """Overrides of each row, separated by blanks."""
    axes: Literal["ladder", "alone", "leave_one_out"] | AxisWord | tuple[AxisWord, ...]
    repeats: PositiveInt
    warm_up: Annotated[int, Range(low=2)]
    steps: PositiveInt
    seconds: NonNegativeFloat
    timeout_s: PositiveFloat
    noise: NonNegativeFloat


@dataclass(frozen=True)
class StartSection:
    """Keys of `model` that every model has: where training starts, and what of it stays there."""

    weights: str | None
    """Path of a file or a run folder, or `torchvision`; None keeps the random initialisation."""
    freeze: tuple[str, ...]


@dataclass(frozen=True)
class RatesSection:
    """Keys of `optimizer` that every optimizer has."""

    layer_decay: LayerDecay | None


@dataclass(frozen=True)
class FeedSection:
    """Keys of `data` that every data set has: how its batches come to the device."""

    prefetch_stream: bool


PUBLISHERS = ("torchvision",)
"""Words of `model.weights` that are no path; a version may follow, as in `torchvision:IMAGENET1K_V2`."""
SHARED_KEYS: dict[str, tuple[str, type]] = {
    "model": ("start", StartSection),
    "optimizer": ("rates", RatesSection),
    "data": ("feed", FeedSection),
}
"""Group -> field of `RunSpec` with the keys that stand beside those of the chosen option, whichever that is."""


@dataclass(frozen=True)
class PluginRecord:
    """Code of the user's own that a run was made with. Only a command line loads it, never this record."""

    name: str
    """As it was typed, or the name of an entry point."""
    path: str
    """Absolute."""
    sha256: str
    """Of the file."""
    distribution: str | None
    """Name and version of the installed package that an entry point belongs to."""


@dataclass(frozen=True)
class RootSection:
    """Fields that stand at the top of the tree."""

    task: Literal["train", "plan", "ablate"]
    resume: str | None
    device: DeviceWord
    cards: Auto | PositiveInt
    memory_cap_gib: PositiveFloat | None
    debug: bool
    plugin: tuple[PluginRecord, ...]


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run; equal specs on one machine give equal runs."""

    root: RootSection
    run: RunSection
    train: TrainSection
    ema: EmaSection
    launch: LaunchSection
    ablate: AblateSection
    start: StartSection
    rates: RatesSection
    feed: FeedSection
    precision: Choice
    memory: tuple[Choice, ...]
    kernels: tuple[Choice, ...]
    metrics: tuple[Choice, ...]
    parallelism: Choice
    model: Choice
    data: Choice
    loss: Choice
    optimizer: Choice
    schedule: Choice
    card: Any
    """A `Card`, or None for the card that is present."""


def to_tree(spec: RunSpec) -> dict[str, Any]:
    """The spec as plain containers, in the shape of the configuration tree."""
    tree = _plain(spec.root)
    for name in ("run", "train", "ema", "launch", "ablate"):
        tree[name] = _plain(getattr(spec, name))
    for group in SINGLE_GROUPS:
        choice = getattr(spec, group)
        tree[group] = {"name": choice.name, **_plain(choice.config)}
    for group, (name, _) in SHARED_KEYS.items():
        tree[group] |= _plain(getattr(spec, name))
    for group in LIST_AXES:
        tree[group] = {choice.name: _plain(choice.config) for choice in getattr(spec, group)}
    tree["card"] = {"name": "auto"} if spec.card is None else _plain(spec.card)
    return tree


def dump(spec: RunSpec) -> str:
    """The spec as YAML text; equal specs give equal text."""
    return OmegaConf.to_yaml(OmegaConf.create(to_tree(spec)))


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> leaf value; lists and empty sections are leaves."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def _plain(record: Any) -> dict[str, Any]:
    return {field.name: _plain_value(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return _plain(value) if isinstance(value, PluginRecord) else value
