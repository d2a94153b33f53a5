"""Rules about what a kernels option can do with the rest."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.rules.memory import names

Problems = Iterator[Problem]


def recomputing_is_capturable(plan: Plan) -> Problems:
    """What is recomputed inside a captured update draws nothing at random, unless the compiler does the drawing."""
    traits = plan.evidence.model
    in_eager = plan.kernels.compile_backend is None or traits.compiled_in_units
    if plan.kernels.graph and plan.memory.recomputes and traits.dropout and in_eager:
        given = f"{names(plan.spec.kernels)} with memory={names(plan.spec.memory)} and dropout"
        why = "the state of the random numbers cannot be set back while a graph is captured"
        compiled = "" if traits.compiled_in_units else "kernels=[fused,graph], "
        yield Problem("kernels", f"{given}: {why}", f"use {compiled}model.dropout=0, or memory=none")


def memory_is_capturable(plan: Plan) -> Problems:
    """What the memory option does can be part of a captured update."""
    memory, given = plan.memory, f"graph beside memory={names(plan.spec.memory)}"
    if plan.kernels.graph and memory.step_in_backward:
        yield Problem("kernels", f"{given}, which steps from hooks of backward", "use kernels=eager or kernels=fused")
    elif plan.kernels.graph and not memory.capturable:
        why = "copies to the host go by an order that is found out anew in every update"
        yield Problem("kernels", f"{given}: {why}", "drop one of them, or use memory=checkpoint")


def one_capture(plan: Plan) -> Problems:
    """The update is captured as a whole, or its forward and backward by the compiler."""
    if plan.kernels.graph and plan.kernels.cuda_graphs_inside:
        given = "graph captures the whole update, and this mode of torch.compile captures parts of it once more"
        yield Problem("kernels.fused.mode", given, "use kernels.fused.mode=default, or drop graph")


def padding_stays_zero(plan: Plan) -> Problems:
    """An optimizer that looks at a whole matrix would see its padding, and may move it."""
    if plan.kernels.pads_weights and not plan.optimizer.elementwise:
        given = f"{plan.spec.optimizer.name} beside kernels={names(plan.spec.kernels)}, whose zeros it might move"
        remedy = "drop align, or use an optimizer that moves each number on its own: optimizer=sgd, optimizer=adamw"
        yield Problem("optimizer", given, remedy)


def head_to_split(plan: Plan) -> Problems:
    """Head and loss in chunks need a head that is known, and a loss of its logits."""
    if plan.kernels.head_chunk_tokens is None:
        return
    if plan.evidence.model.head is None:
        given = f"linear_cross_entropy works on a language model's head, and {plan.spec.model.name} has none"
        yield Problem("kernels", given, "use kernels=eager, or a language model: model=gpt or model=char_lstm")
    if plan.loss.outputs != "class_logits":
        given = f"{plan.spec.loss.name} beside kernels=linear_cross_entropy, which is the loss of one class a token"
        yield Problem("loss", given, "use loss=cross_entropy, or drop linear_cross_entropy")


RULES = (recomputing_is_capturable, memory_is_capturable, one_capture, padding_stays_zero, head_to_split)
