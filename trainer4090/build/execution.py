"""The executor that memory, kernels and parallelism ask for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from trainer4090.build.updates import make_optimizer, make_update
from trainer4090.executors.average import Average
from trainer4090.executors.base import Executor, Forward
from trainer4090.executors.chunked_head import ChunkedHead
from trainer4090.executors.graph import CudaCapture, GraphExecutor, Uncaptured
from trainer4090.executors.in_backward import InBackwardExecutor
from trainer4090.executors.local import LocalExecutor
from trainer4090.executors.portable import joined
from trainer4090.executors.replicated import ReplicatedExecutor
from trainer4090.executors.update import PlainUpdate, Update
from trainer4090.plan import Plan
from trainer4090.ranks import Ranks
from trainer4090.records import Loss, Part


def make_executor(plan: Plan, forward: Forward, loss: Loss, part: Part, ranks: Ranks) -> Executor:
    """The executor of `plan` around a transformed part, whose module is that of `forward`."""
    module, decay = forward.module, plan.spec.ema.decay
    average = None if decay is None else Average(module, decay)
    optimizer = make_optimizer(plan, module, part.blocks, forward.device)
    update = make_update(plan, optimizer, average, forward.device)
    loss = _training_loss(plan, forward, loss, update)
    local = LocalExecutor(
        forward=forward,
        loss=loss,
        optimizer=optimizer,
        update=update,
        average=average,
        micro_batch=plan.batching.micro_batch,
        clip_norm=plan.spec.train.clip_norm,
        name_map=joined([step.portable(module) for step in plan.transforms if step.portable is not None]),
    )
    if plan.parallelism.executor == "replicated":
        seed = plan.spec.train.seed
        return ReplicatedExecutor(local, loss, update, part.entry, ranks, plan.batching, seed)
    if plan.memory.step_in_backward:
        assert isinstance(update, PlainUpdate), "a rule refuses loss scaling, and captured updates"
        return InBackwardExecutor(local, loss, optimizer, update)
    if plan.kernels.graph:
        capture = CudaCapture(forward.device) if forward.device.type == "cuda" else Uncaptured()
        return GraphExecutor(local, plan.batching.batch_size, capture)
    return local


def _training_loss(plan: Plan, forward: Forward, loss: Loss, update: Update) -> Loss:
    """The loss of what the module returns in training."""
    if plan.kernels.compile_function is not None:
        loss = replace(loss, total=plan.kernels.compile_function(loss.total))
    chunk_tokens, name = plan.kernels.head_chunk_tokens, plan.evidence.model.head
    if chunk_tokens is None or name is None:
        return loss
    head = forward.module.get_submodule(name)
    num_targets = plan.batching.batch_size * plan.evidence.data.items_per_sample // plan.batching.data_ranks
    chunked = ChunkedHead(
        logits=partial(type(head).forward, head),  # its own forward hands on its input in training
        parameters=[parameter for parameter in head.parameters() if parameter.requires_grad],
        total=loss.total,
        context=forward.context,
        seed=lambda total: update.seed(total, num_targets),
        chunk_tokens=chunk_tokens,
    )
    return replace(loss, total=chunked)
