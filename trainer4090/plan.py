"""The plan: what a spec becomes on a given card. Making one is pure and imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from trainer4090 import described, evaluation, timings
from trainer4090 import notices as between
from trainer4090.allocator import Allocator, Surroundings, allocator, surroundings
from trainer4090.card import Card
from trainer4090.data import DATA
from trainer4090.errors import ConfigError, Problem
from trainer4090.evaluation import Evaluation
from trainer4090.kernels import KERNELS, Kernels
from trainer4090.losses import LOSSES
from trainer4090.memory import MEMORY, Memory
from trainer4090.memory_cap import MemoryCap, memory_cap
from trainer4090.models import MODELS
from trainer4090.optimizers import OPTIMIZERS, Optimizer
from trainer4090.parallelism import PARALLELISM, Degrees, Parallelism, degrees
from trainer4090.precision import PRECISION, Precision
from trainer4090.records import Batching, Notice, Settings, Transform, divided, merge
from trainer4090.registry import Registry
from trainer4090.schedules import SCHEDULES, Horizon, Schedule
from trainer4090.spec import Choice, RunSpec
from trainer4090.timings import Timing
from trainer4090.traits import DataTraits, Facts, LossTraits, ModelTraits


@dataclass(frozen=True)
class Evidence:
    """What a plan needs besides spec and card, gathered beforehand."""

    data: DataTraits
    model: ModelTraits
    surroundings: Surroundings = field(default_factory=surroundings)
    timings: tuple[Timing, ...] = ()
    """Measurements that settled keys of the spec."""
    num_cards: int = 1
    """Cards of the run: as many as were asked for, or as `cards=auto` finds."""


def gather(spec: RunSpec) -> Evidence:
    """Evidence for a plan: sizes of the data set, read from its files, and what the model states of itself.

    Raises:
        DataError: a file of the data set is missing or unreadable.
        ConfigError: the model knows no such architecture.
    """
    data, model = DATA.get(spec.data.name), MODELS.get(spec.model.name)
    assert data.traits is not None
    data_traits = data.traits(spec.data.config)
    cards = 1 if spec.root.cards == "auto" else spec.root.cards
    if model.derive is not None:
        derived = model.derive(spec.model.config, data_traits)
        return Evidence(data=data_traits, model=derived, num_cards=cards)
    assert model.traits is not None
    return Evidence(data=data_traits, model=model.traits(spec.model.config), num_cards=cards)


@dataclass(frozen=True)
class Plan:
    """Ordered steps and settled facts of one run on one card."""

    spec: RunSpec
    card: Card
    evidence: Evidence
    batching: Batching
    horizon: Horizon
    precision: Precision
    memory: Memory
    kernels: Kernels
    parallelism: Parallelism
    loss: LossTraits
    optimizer: Optimizer
    schedule: Schedule
    evaluation: Evaluation
    evaluation_batch: int
    """Samples an evaluation takes at once: whole logits of a micro-batch may be what training does without."""
    transforms: tuple[Transform, ...]
    fused_optimizer: bool
    """One kernel for all parameters: asked for, or needed because fp16 skips updates on the device."""
    allocator: Allocator
    memory_cap: MemoryCap
    settings: Settings
    """Of the options; those of the allocator stand beside them."""
    notices: tuple[Notice, ...]

    @property
    def degrees(self) -> Degrees:
        """How the cards are shared out."""
        return degrees(self.spec.parallelism.name, self.spec.parallelism.config, self.evidence.num_cards)

    def describe(self) -> str:
        """One line a step, each with the reason of what was chosen automatically."""
        return "\n".join(described.lines(self))


def make(spec: RunSpec, card: Card, evidence: Evidence) -> Plan:
    """The plan of `spec` on `card`; `rules.check` says whether it can be run.

    Raises:
        ConfigError: options of one axis contradict each other.
    """
    batching, horizon = _batching(spec, evidence), horizon_of(spec, evidence.data)
    facts, cap = Facts(card, batching, evidence.model, evidence.data), memory_cap(spec.root.memory_cap_gib, card)
    problems: list[Problem] = []
    precision, memory, kernels, parallelism = options = _options(spec, facts, problems)
    loss = _loss_traits(spec, evidence.data)
    evaluated = evaluation.make(spec, evidence.data, loss, problems)
    _refuse(problems)
    schedule = SCHEDULES.get(spec.schedule.name).build(spec.schedule.config)
    notices = tuple(chain.from_iterable(each.notices for each in (cap, evidence.data, *options)))
    notices += between.of_all(spec, batching, horizon, schedule, evidence.model, memory, kernels)
    return Plan(
        spec=spec,
        card=card,
        evidence=evidence,
        batching=batching,
        horizon=horizon,
        precision=precision,
        memory=memory,
        kernels=kernels,
        parallelism=parallelism,
        loss=loss,
        optimizer=OPTIMIZERS.get(spec.optimizer.name).build(spec.optimizer.config),
        schedule=schedule,
        evaluation=evaluated,
        evaluation_batch=_evaluation_batch(kernels, batching, evidence.data),
        transforms=_in_order(option.transforms for option in options),
        fused_optimizer=kernels.fused_optimizer or precision.loss_scale is not None,
        allocator=allocator(card, evidence.surroundings),
        memory_cap=cap,
        settings=sum((option.settings for option in options), start=Settings()),
        notices=notices + timings.notices(spec, facts, notices),
    )


def _options(spec: RunSpec, facts: Facts, problems: list[Problem]) -> tuple[Precision, Memory, Kernels, Parallelism]:
    """The records of the four axes; `problems` gets what options of one axis contradict each other in."""
    return (
        PRECISION.get(spec.precision.name).build(spec.precision.config, facts),
        merge("memory", _records(MEMORY, spec.memory, facts), problems),
        merge("kernels", _records(KERNELS, spec.kernels, facts), problems),
        PARALLELISM.get(spec.parallelism.name).build(spec.parallelism.config, facts),
    )


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(*problems)


def facts_of(made: Plan) -> Facts:
    """What the options of a plan have read."""
    return Facts(made.card, made.batching, made.evidence.model, made.evidence.data)


def _batching(spec: RunSpec, evidence: Evidence) -> Batching:
    data_ranks = degrees(spec.parallelism.name, spec.parallelism.config, evidence.num_cards).data
    return divided(spec.train.batch_size, spec.train.micro_batch, data_ranks)


def _in_order(transforms: Iterable[tuple[Transform, ...]]) -> tuple[Transform, ...]:
    return tuple(sorted(chain.from_iterable(transforms), key=lambda transform: transform.stage))


def _records(registry: Registry[Any], choices: tuple[Choice, ...], facts: Facts) -> list[tuple[str, Any]]:
    return [(choice.name, registry.get(choice.name).build(choice.config, facts)) for choice in choices]


def _loss_traits(spec: RunSpec, data: DataTraits) -> LossTraits:
    traits = LOSSES.get(spec.loss.name).traits
    assert traits is not None
    return traits(spec.loss.config, data)


def _evaluation_batch(kernels: Kernels, batching: Batching, data: DataTraits) -> int:
    if kernels.head_chunk_tokens is None:
        return batching.micro_batch
    return max(1, min(batching.micro_batch, kernels.head_chunk_tokens // data.items_per_sample))


def horizon_of(spec: RunSpec, data: DataTraits) -> Horizon:
    """Length of the run in updates; the smaller tail of an epoch is an update too."""
    per_epoch = max(1, -(-data.num_train // spec.train.batch_size))
    total = spec.train.steps if spec.train.steps is not None else (spec.train.epochs or 0) * per_epoch
    return Horizon(total=total, per_epoch=per_epoch)
