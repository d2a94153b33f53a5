"""Training on two ranks is training in one process with the same micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from conftest import plan_of, run_of
from equal_runs import assert_near, state_of, tiny
from gangs import CPU, Gang, gang, in_one_process, on_ranks, tensors
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer4090 import loop
from trainer4090.build import build
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.errors import ConfigError
from trainer4090.executors.group import Group
from trainer4090.executors.local import micro_batches

FP64 = 1e-12
ENOUGH = ("train.clip_norm=0.5", "ema.decay=0.9")
NO_EMA = ("train.clip_norm=0.5",)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    with gang(tmp_path_factory.mktemp("pair")) as ranks:
        yield ranks


def assert_equal(ranks: list[dict[str, Any]], reference: dict[str, Any], tolerance: float = FP64) -> None:
    """All ranks hold the same state, and it is the reference's; losses and norms are those of all ranks."""
    for other in ranks[1:]:
        for name, tensor in ranks[0]["model"].items():
            assert torch.equal(tensor, other["model"][name]), name
    first = ranks[0]
    assert first["rates"] == reference["rates"]
    for name in ("losses", "norms"):
        tensors(first[name], reference[name], rtol=tolerance, atol=tolerance)
    assert_near(reference["model"], first["model"], tolerance)
    if reference["executor"]["average"] is not None:
        assert_near(reference["executor"]["average"], first["executor"]["average"], tolerance)


CASES = [
    pytest.param("mlp", 4, "none", True, id="mlp-ragged"),
    pytest.param("mlp", 1, "none", True, id="mlp-ragged-accumulated"),
    pytest.param("gpt", 4, "none", True, id="gpt-ragged"),
    pytest.param("gpt", 1, "checkpoint", True, id="gpt-ragged-accumulated-checkpoint"),
    pytest.param("gpt", 1, "none", False, id="gpt-accumulated", marks=pytest.mark.full),
    pytest.param("gpt", 4, "checkpoint", False, id="gpt-checkpoint", marks=pytest.mark.full),
    pytest.param("gpt", 2, "offload", True, id="gpt-offload"),
    pytest.param("char_lstm", 2, "none", True, id="lstm-ragged", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("model", "micro_batch", "memory", "masked"), CASES)
def test_two_ranks_are_one_process(pair: Gang, model: str, micro_batch: int, memory: str, masked: bool) -> None:
    details = ("memory.offload.min_mib=0",) if memory == "offload" else ()
    words = tiny(model, *ENOUGH, f"train.micro_batch={micro_batch}", f"memory={memory}", *details)
    ranks = pair.run(on_ranks, words, 20, masked, torch.float64)
    assert_equal(ranks, in_one_process(words, 20, masked, torch.float64))


@pytest.mark.parametrize("limit", [11, 13, 17], ids="{} samples".format)
def test_tail_of_an_epoch(pair: Gang, limit: int) -> None:
    """Samples for both ranks with fewer for one, for one rank only, and a single one: 8 an update, 2 a micro-batch."""
    words = tiny("mlp", *ENOUGH, "train.micro_batch=2", f"data.limit={limit}")
    ranks = pair.run(on_ranks, words, 7, False, torch.float64)
    assert_equal(ranks, in_one_process(words, 7, False, torch.float64))


@pytest.mark.parametrize("micro_batch", [2, 4])
@pytest.mark.parametrize(("model", "memory"), [("gpt", "none"), ("gpt", "checkpoint"), ("mlp", "none")])
def test_dropout_is_drawn_for_a_micro_batch(pair: Gang, model: str, memory: str, micro_batch: int) -> None:
    words = tiny(model, "model.dropout=0.3", f"memory={memory}", f"train.micro_batch={micro_batch}")
    ranks = pair.run(on_ranks, words, 6, False, torch.float64)
    reference = in_one_process(words, 6, False, torch.float64, "ddp")
    assert_equal(ranks, reference)
    without = in_one_process((*words, "model.dropout=0"), 6, False, torch.float64, "ddp")
    assert not torch.allclose(without["losses"], reference["losses"])


def replicas_by_hand(words: tuple[str, ...], num_updates: int, num_ranks: int) -> dict[str, torch.Tensor]:
    """State after updates of which each replica sees its own micro-batches, in one process."""
    run = run_of(*words, dtype=torch.float64)
    executor: Any = run.executor
    module, batching = executor.forward.module, run.plan.batching
    share = batching.batch_size // batching.micro_batch // num_ranks
    source = training_batches(run.data.train, run.loss.count, batching.batch_size, 0, Position(0, 0), 0, False)
    for _, (batch, _) in zip(range(num_updates), source, strict=False):
        executor.release_gradients()
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        after: list[dict[str, torch.Tensor]] = []
        parts = list(micro_batches(executor.forward.prepare(batch.inputs), batch.targets, batching.micro_batch))
        for rank in range(num_ranks):
            set_buffers(module, before)
            for inputs, targets in parts[rank * share : (rank + 1) * share]:
                total = run.loss.total(executor.forward(inputs), targets)
                total.backward(torch.ones_like(total) / batch.num_targets)
            after.append({name: buffer.clone() for name, buffer in module.named_buffers()})
        set_buffers(module, {name: joined([each[name] for each in after], old) for name, old in before.items()})
        executor.finish((torch.zeros(()),), batch.num_targets, False)
    return dict(module.state_dict())


def set_buffers(module: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, buffer in module.named_buffers():
        buffer.copy_(values[name])


def joined(values: list[torch.Tensor], before: torch.Tensor) -> torch.Tensor:
    stacked = torch.stack(values)
    return stacked.mean(0) if stacked.is_floating_point() else before + (stacked - before).sum(0)


@pytest.mark.parametrize("micro_batch", [2, 4])
def test_batch_norm_of_replicas(pair: Gang, micro_batch: int) -> None:
    words = tiny("cnn", *NO_EMA, f"train.micro_batch={micro_batch}", "model.dropout=0")
    ranks = pair.run(on_ranks, words, 20, False, torch.float64)
    reference = replicas_by_hand(words, 20, 2)
    assert_near(reference, ranks[0]["model"], FP64)
    assert all(torch.equal(tensor, ranks[1]["model"][name]) for name, tensor in ranks[0]["model"].items())
    counters = [int(tensor) for name, tensor in reference.items() if name.endswith("num_batches_tracked")]
    assert set(counters) == {20 * 8 // micro_batch}


AOT = ("kernels=fused", "kernels.fused.backend=aot_eager")
OPTIONS = {
    "static_graph": (("parallelism.static_graph=true",), FP64),
    "small-buckets": (("parallelism.bucket_mib=0.001",), FP64),
    "no-views": (("parallelism.gradient_as_bucket_view=false",), FP64),
    "powersgd-before-its-start": (("parallelism.compress=powersgd",), FP64),
    "bf16": (("parallelism.compress=bf16",), 0.05),
    "compiled": (AOT, FP64),
    "compiled-checkpoint": ((*AOT, "memory=checkpoint"), FP64),
    "chunked-head": (("kernels=linear_cross_entropy",), FP64),
    "lowbit": (("memory=lowbit", "memory.lowbit.min_elements=64", "optimizer=adamw"), 1e-6),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_train_equally(pair: Gang, option: str) -> None:
    words, tolerance = OPTIONS[option]
    common = tiny("gpt", *NO_EMA, "train.micro_batch=2", *(word for word in words if "parallelism" not in word))
    ranks = pair.run(on_ranks, (*common, *words), 4, False, torch.float64)
    assert_equal(ranks, in_one_process(common, 4, False, torch.float64), tolerance)


def test_powersgd_is_close_and_equal_on_all_ranks(pair: Gang) -> None:
    words = ("parallelism.compress=powersgd", "parallelism.powersgd_start=2", "parallelism.powersgd_rank=8")
    ranks = pair.run(on_ranks, (*tiny("mlp"), *words), 12, False, torch.float32)
    reference = in_one_process(tiny("mlp"), 12, False, torch.float32)
    assert torch.equal(ranks[0]["losses"], ranks[1]["losses"])
    assert not torch.equal(ranks[0]["losses"], reference["losses"])
    torch.testing.assert_close(ranks[0]["losses"], reference["losses"], rtol=0.1, atol=0.02)


AMP = ("precision=amp", "precision.initial_scale=16384", "precision.growth_interval=3", "optimizer.lr=0.01")


def overflowing_on_one(group: Group, words: tuple[str, ...], at_rank: int) -> dict[str, Any]:
    """Updates of which the third overflows on one rank alone."""
    run = build(plan_of(*words, "parallelism=ddp", "cards=2"), CPU, lambda text: None, ranks=group)
    batches = loop.batches_from(run, Position(0, 0))
    scales = []
    for number in range(5):
        batch, _ = next(batches)
        if number == 2 and group.rank == at_rank:
            batch = replace(batch, inputs=torch.full_like(batch.inputs.float(), torch.inf))
        scale = run.executor.step(batch, observe=True).loss_scale
        assert scale is not None
        scales.append(float(scale))
    return {"scales": scales, "model": state_of(run), "update": run.executor.state_dict()["update"]}


@pytest.mark.parametrize("at_rank", [0, 1])
def test_an_overflow_of_one_rank_is_skipped_by_all(pair: Gang, at_rank: int) -> None:
    first, second = pair.run(overflowing_on_one, tiny("mlp", *AMP), at_rank)
    assert first["update"] == second["update"] and first["update"]["applied"] == 4
    assert first["scales"] == second["scales"] == [16384.0, 16384.0, 16384.0, 8192.0, 8192.0]
    assert all(torch.equal(tensor, second["model"][name]) for name, tensor in first["model"].items())


def leaving_out(group: Group, at_update: int) -> str:
    """What is said of a parameter that the loss of an update does not depend on."""
    run = build(plan_of(*tiny("mlp"), "parallelism=ddp", "cards=2"), CPU, lambda text: None, ranks=group)
    batches = loop.batches_from(run, Position(0, 0))
    body: Any = run.executor.forward.module
    last = [layer for layer in body.modules() if isinstance(layer, nn.Linear)][-1]
    for number in range(3):
        if number == at_update:
            without_bias: Any = lambda hidden: nn.functional.linear(hidden, last.weight)  # noqa: E731
            last.forward = without_bias
        try:
            run.executor.step(next(batches)[0], observe=False)
        except ConfigError as error:
            return str(error)
    return "nothing"


@pytest.mark.parametrize("at_update", [0, 1])
def test_a_parameter_without_gradient_is_named(pair: Gang, at_update: int) -> None:
    for said in pair.run(leaving_out, at_update):
        assert said.startswith("model: the loss") and ".bias" in said and "use these parameters" in said


def exchanges(group: Group, micro_batch: int) -> int:
    """Micro-batches of two updates whose gradients stay on their rank."""
    plan = plan_of(*tiny("mlp", f"train.micro_batch={micro_batch}"), "parallelism=ddp", "cards=2")
    run = build(plan, CPU, lambda text: None, ranks=group)
    batches, no_sync, kept = loop.batches_from(run, Position(0, 0)), DistributedDataParallel.no_sync, 0

    def counted(self: DistributedDataParallel) -> Any:
        nonlocal kept
        kept += 1
        return no_sync(self)

    with patch.object(DistributedDataParallel, "no_sync", counted):
        for _ in range(2):
            run.executor.step(next(batches)[0], observe=False)
    return kept


@pytest.mark.parametrize(("micro_batch", "kept"), [(4, 0), (1, 6)])
def test_gradients_are_exchanged_once_an_update(pair: Gang, micro_batch: int, kept: int) -> None:
    assert pair.run(exchanges, micro_batch) == [kept, kept]


def evaluated(group: Group, words: tuple[str, ...]) -> tuple[dict[str, float], int]:
    """The evaluation, and how many samples this rank fetched for it."""
    run = build(plan_of(*words, "parallelism=ddp", "cards=2"), CPU, lambda text: None, ranks=group)
    source, seen = run.data.evaluation, []

    class Counting(type(source)):  # type: ignore[misc]
        def fetch(self, indices: torch.Tensor, epoch: int) -> Any:
            seen.extend(indices.tolist())
            return source.fetch(indices, epoch)

    counting = Counting.__new__(Counting)
    counting.__dict__.update(vars(source))
    return loop.evaluate(replace(run, data=replace(run.data, evaluation=counting))), len(seen)


EVALUATIONS = {
    "means": (),
    "a metric of all outputs": ("metrics=[top5,torchmetrics]", "metrics.torchmetrics.names=[F1Score]"),
    "one batch": ("train.batch_size=512", "train.micro_batch=256"),
}


@pytest.mark.parametrize("words", EVALUATIONS.values(), ids=EVALUATIONS)
def test_an_evaluation_counts_every_sample_once(pair: Gang, words: tuple[str, ...]) -> None:
    common = (*tiny("mlp", "train.micro_batch=64", batch_size=128), *words)
    (first, num_first), (second, num_second) = pair.run(evaluated, common)
    reference = loop.evaluate(run_of(*common))
    assert num_first + num_second == 355 and num_second < num_first
    assert first == second and first == pytest.approx(reference, rel=1e-12)


def shared_out(group: Group, words: tuple[str, ...], num_workers: int) -> list[list[float]]:
    """First numbers of the samples that a rank reads in each of some updates."""
    plan = plan_of(*words, "parallelism=ddp", "cards=2", f"data.num_workers={num_workers}")
    run = build(plan, CPU, lambda text: None, ranks=group)
    with closing(loop.batches_from(run, Position(0, 8))) as batches:
        return [list(map(float, next(batches)[0].targets)) for _ in range(4)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_ranks_share_out_the_order_of_one_process(pair: Gang, num_workers: int) -> None:
    words = tiny("cnn", "data.limit=18", "data.augment=true")
    first, second = pair.run(shared_out, words, num_workers)
    run = run_of(*words)
    batches = training_batches(run.data.train, run.loss.count, 8, 0, Position(0, 8), 0, False)
    whole = [list(map(float, next(batches)[0].targets)) for _ in range(4)]
    assert [one + other for one, other in zip(first, second, strict=True)] == whole
    assert [len(part) for part in second] == [4, 0, 4, 4]
