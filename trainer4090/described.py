"""A plan in words: one line a step, each with the reason of what was chosen automatically. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer4090.card import Card

if TYPE_CHECKING:
    from trainer4090.plan import Plan


def lines(plan: Plan) -> list[str]:
    """Card, training, steps, what was measured, and what is other than was asked for."""
    return [
        f"plan for {plan.card.device_name} ({_card_facts(plan.card)})",
        *_training(plan),
        *(f"  step {number}        {step}" for number, step in enumerate(_steps(plan), start=1)),
        *(f"  measured      {timing}" for timing in plan.evidence.timings),
        *(f"  notice        {notice}" for notice in plan.notices),
    ]


def _training(plan: Plan) -> list[str]:
    spec, batching, data = plan.spec, plan.batching, plan.evidence.data
    unit = {"images": "images", "tokens": "sequences"}.get(data.kind, "samples")
    item = "x".join(str(size) for size in data.item_shape)
    cards = "1 card" if batching.data_ranks == 1 else f"{batching.data_ranks} cards"
    micro = f"{batching.micro_batch} micro-batch x {batching.accumulation} accumulation x {cards}"
    return [
        f"  length        {plan.horizon.total} updates, {plan.horizon.per_epoch} an epoch",
        f"  batch         {batching.batch_size} = {micro}",
        f"  data          {spec.data.name}: {data.num_train:,} training {unit} of {item}, "
        f"{data.num_evaluation:,} held out, {data.num_classes} classes{_aside(data.description)}",
        f"  model         {spec.model.name}{_start(plan)}",
        f"  precision     {spec.precision.name}: matrix products in {_arithmetic(plan)}{_scale(plan)}",
        f"  memory        {', '.join(choice.name for choice in spec.memory)}",
        f"  kernels       {', '.join(choice.name for choice in spec.kernels)}{_attention(plan)}",
        f"  parallelism   {spec.parallelism.name}: {plan.parallelism.executor} executor",
        f"  evaluation    {plan.evaluation.describe()}",
        *([f"  allocator     {plan.allocator.label}"] if plan.allocator.label else []),
        *([f"  memory cap    {plan.memory_cap.label}"] if plan.memory_cap.label else []),
    ]


def _start(plan: Plan) -> str:
    start = plan.spec.start
    weights = "" if start.weights is None else f", weights of {start.weights}"
    return weights + (f", frozen: {', '.join(start.freeze)}" if start.freeze else "")


def _arithmetic(plan: Plan) -> str:
    precision = plan.precision
    summed = "" if precision.accumulation == "float32" else f", summed in {precision.accumulation}"
    return f"{precision.arithmetic}{summed}"


def _attention(plan: Plan) -> str:
    backend = plan.kernels.attention
    return "" if backend is None else f": attention by {'torch' if backend == 'auto' else backend + ' alone'}"


def _scale(plan: Plan) -> str:
    scale = plan.precision.loss_scale
    return "" if scale is None else f", loss scaled by {scale.initial:g} at first"


def _steps(plan: Plan) -> list[str]:
    steps = [f"{transform.stage.name}: {transform.label}" for transform in plan.transforms]
    steps += [f"FORWARD: {around.label}" for around in plan.memory.contexts]
    steps.append(f"OPTIMIZER: {_optimizer(plan)}")
    if plan.kernels.graph and plan.card.device == "cuda":
        steps.append("CAPTURE: the whole update as one CUDA graph, once for every shape of a whole batch")
    decay = plan.spec.ema.decay
    if decay is not None:
        steps.append(f"EMA: parameters averaged with decay {decay:g}, evaluated and saved")
    return steps


def _optimizer(plan: Plan) -> str:
    kind = "fused" if plan.fused_optimizer else "torch's default"
    reason = ""
    if plan.fused_optimizer and not plan.kernels.fused_optimizer:
        reason = " (fp16 skips an overflowed update on the device, without a synchronisation)"
    decay, low_bit = plan.spec.rates.layer_decay, plan.memory.low_bit
    return "".join(
        [
            f"{plan.spec.optimizer.name}, {kind} kernels{reason}, schedule {plan.spec.schedule.name}",
            "" if decay is None else f", each block {decay:g} times the rate of the next",
            ", each parameter inside backward" if plan.memory.step_in_backward else "",
            "" if low_bit is None else f", states of {low_bit.min_elements} values or more in 8 bits",
        ]
    )


def _card_facts(card: Card) -> str:
    memory = "" if card.memory_mib is None else f"{card.memory_mib:,} MiB, "
    return f"{memory}{card.source}"


def _aside(text: str) -> str:
    return f" ({text})" if text else ""
