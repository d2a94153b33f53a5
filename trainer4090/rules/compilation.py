"""Rules about compiled forwards."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.records import Stage

Problems = Iterator[Problem]


def script_reads_the_class(plan: Plan) -> Problems:
    """TorchScript compiles source text, so nothing else may replace what runs."""
    replaced = [step for step in plan.transforms if step.stage is Stage.CHECKPOINT]
    layers = plan.kernels.pads_weights or plan.kernels.head_chunk_tokens is not None
    if plan.kernels.scripted and (replaced or plan.precision.arithmetic == "float8" or layers):
        given = "script compiles forwards as their classes have them, and another option replaces some of these"
        yield Problem("kernels", given, "use fused in place of script, or memory=none with precision=amp or bf16")


def one_compiler(plan: Plan) -> Problems:
    """The model is scripted or compiled."""
    if plan.kernels.scripted and plan.kernels.compile_backend is not None:
        given = f"script beside torch.compile with {plan.kernels.compile_backend}: each compiles the whole forward"
        yield Problem("kernels", given, "use kernels.fused.compile=false, or drop script")


def graphs_inside_hold_one_micro_batch(plan: Plan) -> Problems:
    """Gradients that CUDA graphs of the compiler made are used up before these run again."""
    batching = plan.batching
    if plan.kernels.cuda_graphs_inside and batching.accumulation > 1:
        given = (
            f"{batching.micro_batch} makes {batching.accumulation} micro-batches, and the CUDA graphs of torch.compile"
        )
        given += " write the gradients of each where those of the one before lie"
        remedy = f"use kernels.fused.mode=default, or train.micro_batch={batching.batch_size // batching.data_ranks}"
        yield Problem("train.micro_batch", given, remedy)


RULES = (
    script_reads_the_class,
    one_compiler,
    graphs_inside_hold_one_micro_batch,
)
