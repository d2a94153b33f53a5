"""Rules about what a memory option needs."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090 import memory_cap
from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.spec import Choice

Problems = Iterator[Problem]


def blocks_needed(plan: Plan) -> Problems:
    """An option that works on blocks has some."""
    if plan.memory.needs_blocks and not plan.evidence.model.blocks:
        given = f"{names(plan.spec.memory)} works on blocks, and {plan.spec.model.name} has none: only lone layers"
        yield Problem("memory", given, "use memory=none, or a model with blocks")


def compiler_needed(plan: Plan) -> Problems:
    """An option that leaves its work to the compiler has one."""
    if plan.memory.needs_compile and plan.kernels.compile_backend is None:
        kernels = names(plan.spec.kernels)
        given = (
            f"{names(plan.spec.memory)} with a budget leaves the choice to the compiler, and {kernels} compiles nothing"
        )
        yield Problem("memory.checkpoint.budget", given, "use kernels=fused, or budget=null with every=2")


def no_second_draw(plan: Plan) -> Problems:
    """An option that cannot repeat random numbers meets a model that draws none."""
    field = plan.memory.redraws
    if field is not None and plan.evidence.model.dropout:
        given = (
            f"{plan.spec.model.name} has dropout, and with {field} {names(plan.spec.memory)} draws another in backward"
        )
        remedy = "use memory.checkpoint.every=2 alone, or a model without dropout"
        yield Problem(f"memory.checkpoint.{field}", given, remedy)


def whole_gradient(plan: Plan) -> Problems:
    """Who steps inside backward never has the whole gradient, so nothing may be decided from it."""
    if not plan.memory.step_in_backward:
        return
    option, batching, train = names(plan.spec.memory), plan.batching, plan.spec.train
    if batching.accumulation > 1:
        given = f"{batching.accumulation} micro-batches an update, but {option} steps in the backward of each"
        yield Problem("train.micro_batch", given, "use train.micro_batch=null, or another memory option")
    if train.clip_norm is not None:
        given = f"{train.clip_norm:g}, but {option} steps a parameter before the norm of all gradients is known"
        yield Problem("train.clip_norm", given, "use train.clip_norm=null, or another memory option")
    if plan.precision.loss_scale is not None:
        given = f"{plan.spec.precision.name} skips an update whose gradients overflow, but {option} has stepped others"
        yield Problem("precision", given, "use precision=bf16, or another memory option")


def steps_alone(plan: Plan) -> Problems:
    """Who steps one parameter at a time has an optimizer whose step may be taken apart, and whose states it knows."""
    memory, optimizer, name = plan.memory, plan.optimizer, plan.spec.optimizer.name
    option = names(plan.spec.memory)
    if (memory.step_in_backward or memory.low_bit is not None) and not optimizer.separable:
        given = f"{name} does not state that its step is separable, and {option} makes it for one parameter at a time"
        yield Problem("optimizer", given, "use optimizer=adamw or optimizer=sgd, or give its record separable=True")
    if memory.low_bit is not None and not optimizer.states:
        given = f"{name} names no states that 8 bits are enough for, as {option} needs"
        yield Problem("optimizer", given, "use optimizer=adamw or optimizer=sgd, or give its record states={...}")


def cap_within_card(plan: Plan) -> Problems:
    """A cap is no larger than what it caps."""
    yield from memory_cap.problems(plan.memory_cap, plan.card)


def names(choices: tuple[Choice, ...]) -> str:
    """Options of an axis as they are typed."""
    return ", ".join(choice.name for choice in choices)


RULES = (
    blocks_needed,
    compiler_needed,
    no_second_draw,
    whole_gradient,
    steps_alone,
    cap_within_card,
)
