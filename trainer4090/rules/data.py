"""Rules about a data set itself: a sound configuration can still meet one that is too small or wrong."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan

Problems = Iterator[Problem]


def targets_are_classes(plan: Plan) -> Problems:
    """Every target is a class, or the one that the loss ignores."""
    problem = plan.evidence.data.target_problem(plan.loss.ignore_index)
    if problem is not None:
        yield problem


def enough_samples(plan: Plan) -> Problems:
    """At least one whole batch of training samples, and something to evaluate on."""
    data, batch_size = plan.evidence.data, plan.batching.batch_size
    if data.num_train < batch_size:
        given = f"{data.num_train} training samples are fewer than train.batch_size={batch_size}"
        yield Problem("data", given, f"use train.batch_size={max(data.num_train, 1)} or more data")
    if data.num_evaluation == 0:
        yield Problem("data", "no samples are held out for evaluation", "use more data or a larger held-out part")


RULES = (
    enough_samples,
    targets_are_classes,
)
