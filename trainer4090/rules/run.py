"""Rules about length, batches and what decides the best evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.schema import suggestion

Problems = Iterator[Problem]


def one_length(plan: Plan) -> Problems:
    """Exactly one of steps and epochs says how long a run is."""
    train = plan.spec.train
    if train.steps is not None and train.epochs is not None:
        given = f"{train.epochs} beside train.steps={train.steps}"
        yield Problem("train.epochs", given, "give one of them and set the other to null")
    if train.steps is None and train.epochs is None:
        yield Problem("train.steps", "null beside train.epochs=null", "give one of them")


def batch_divides(plan: Plan) -> Problems:
    """batch_size = micro_batch x accumulation x data_ranks."""
    batching = plan.batching
    ranks, whole = batching.data_ranks, batching.batch_size // batching.data_ranks
    if batching.batch_size % ranks:
        nearest = " or ".join(str(size) for size in (whole * ranks, (whole + 1) * ranks) if size)
        given = f"{batching.batch_size} cannot be shared out to {ranks} cards"
        yield Problem("train.batch_size", given, f"the nearest that can: {nearest}")
        return
    if batching.micro_batch * batching.accumulation != whole:
        valid = [size for size in range(1, whole + 1) if whole % size == 0]
        below = max((size for size in valid if size < batching.micro_batch), default=None)
        above = min((size for size in valid if size > batching.micro_batch), default=None)
        nearest = " or ".join(str(size) for size in (below, above) if size is not None)
        shares = "" if ranks == 1 else f" / {ranks} cards = {whole}"
        given = f"{batching.micro_batch} does not divide train.batch_size={batching.batch_size}{shares}"
        yield Problem("train.micro_batch", given, f"the nearest that do: {nearest}")


def cards_fit(plan: Plan) -> Problems:
    """No more cards than the parallelism uses."""
    cards, most = plan.spec.root.cards, plan.parallelism.max_cards
    if cards != "auto" and most is not None and cards > most:
        name = plan.spec.parallelism.name
        yield Problem("cards", f"{cards}, but parallelism={name} uses {most}", f"use cards={most}")


def best_by_is_evaluated(plan: Plan) -> Problems:
    """What decides the best evaluation is measured in every one, and has a better side."""
    tag, tags = plan.spec.train.best_by, plan.evaluation.tags
    if tag not in tags:
        remedy = f"{suggestion(tag, tags, 'tags of this run')}; others: trainer4090 list metrics"
        yield Problem("train.best_by", f"{tag} is not evaluated", remedy)
    elif plan.evaluation.directions[plan.evaluation.criterion.name] is None:
        yield Problem("train.best_by", f"{tag} is better neither high nor low", "use another tag")


def improvement_needs_patience(plan: Plan) -> Problems:
    """What an improvement is matters only to someone who waits for it."""
    criterion = plan.evaluation.criterion
    if criterion.least_improvement and criterion.patience is None:
        given = f"{criterion.least_improvement:g} with train.patience=null"
        yield Problem("train.least_improvement", given, "nothing waits for it: give train.patience, or drop it")


RULES = (
    one_length,
    batch_divides,
    cards_fit,
    best_by_is_evaluated,
    improvement_needs_patience,
)
