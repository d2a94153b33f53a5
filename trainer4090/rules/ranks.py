"""Rules about training on several ranks."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.rules.memory import names
from trainer4090.timings import wanted

Problems = Iterator[Problem]


def whole_gradient_to_exchange(plan: Plan) -> Problems:
    """What is averaged over ranks is there when it is averaged."""
    if plan.parallelism.executor == "replicated" and plan.memory.step_in_backward:
        given = f"{names(plan.spec.memory)} steps a parameter before its gradient is averaged over ranks"
        yield Problem("memory", given, "use parallelism=single, or another memory option")


def exchange_outside_of_graphs(plan: Plan) -> Problems:
    """The exchange between ranks happens while backward runs, not in a replayed graph."""
    if plan.parallelism.executor != "replicated":
        return
    name = plan.spec.parallelism.name
    if plan.kernels.graph:
        given = f"graph beside parallelism={name}, whose buckets are exchanged from hooks that a replay does not call"
        yield Problem("kernels", given, "use kernels=fused or kernels=eager, or parallelism=single")
    if plan.kernels.cuda_graphs_inside:
        given = (
            f"CUDA graphs of torch.compile beside parallelism={name} write gradients where buckets may still be read"
        )
        yield Problem("kernels.fused.mode", given, "use kernels.fused.mode=default, or parallelism=single")


def measured_in_one_process(plan: Plan) -> Problems:
    """An ablation's row is one process, which times itself and decides alone when it has measured enough."""
    if plan.spec.root.task == "ablate" and plan.batching.data_ranks > 1:
        given = f"{plan.spec.parallelism.name} on several cards, but a row is measured in one process"
        yield Problem("parallelism", given, "use cards=1, or compare speed/items_per_s of two runs")


def chosen_in_one_process(plan: Plan) -> Problems:
    """What a key that says `measure` is compared by are processes that train on one card."""
    for key in wanted(plan.spec) if plan.batching.data_ranks > 1 else ():
        given = f"measure beside parallelism={plan.spec.parallelism.name} on several cards, and it is timed on one"
        yield Problem(key, given, "measure it with cards=1, then give the value that the plan names")


RULES = (whole_gradient_to_exchange, exchange_outside_of_graphs, measured_in_one_process, chosen_in_one_process)
