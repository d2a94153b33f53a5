"""Rules about a model and the data, loss and rates that it meets."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem
from trainer4090.plan import Plan
from trainer4090.spec import PUBLISHERS

Problems = Iterator[Problem]


def same_kind(plan: Plan) -> Problems:
    """The model takes what the data set gives."""
    model, data = plan.evidence.model, plan.evidence.data
    if model.kind != data.kind:
        given = f"{plan.spec.model.name} takes {model.kind}, but data={plan.spec.data.name} gives {data.kind}"
        examples = {"images": "data=digits or data=synthetic_images", "tokens": "data=text or data=tokens"}
        fitting = examples.get(model.kind, f"data that gives {model.kind}")
        yield Problem("model", given, f"use {fitting}, or a model for {data.kind}")


def item_fits(plan: Plan) -> Problems:
    """Items have a shape that the model can take."""
    model, data = plan.evidence.model, plan.evidence.data
    problem = model.item_problem(data.item_shape) if model.kind == data.kind else None
    if problem is not None:
        yield problem


def enough_outputs(plan: Plan) -> Problems:
    """Every label has an output."""
    model, data = plan.evidence.model, plan.evidence.data
    if model.kind == data.kind and model.num_outputs is not None and model.num_outputs < data.num_classes:
        key = "model.vocab_size" if model.kind == "tokens" else "model.num_classes"
        given = f"{model.num_outputs}, but data={plan.spec.data.name} has {data.num_classes} classes"
        hint = ""
        if data.smallest_target == 1 and model.num_outputs == data.num_classes - 1:
            hint = "; its labels start at 1: subtract 1"
        yield Problem(key, given, f"at least {data.num_classes}, or auto{hint}")


def loss_fits_outputs(plan: Plan) -> Problems:
    """A loss with a weight for every class meets a model with as many outputs."""
    outputs, wanted = plan.evidence.model.num_outputs, plan.loss.num_outputs
    if outputs is not None and wanted is not None and outputs != wanted:
        given = f"made for {wanted} outputs, but the model has {outputs}"
        yield Problem("loss", given, f"give the model {wanted} outputs (auto follows the data), or drop the weights")


def weights_are_published(plan: Plan) -> Problems:
    """A word in place of a file of weights is one that the model knows."""
    word = plan.spec.start.weights or ""
    publisher = word.partition(":")[0]
    if publisher in PUBLISHERS and publisher != plan.evidence.model.published:
        given = f"{word}, but model={plan.spec.model.name} is none of {publisher}'s"
        yield Problem("model.weights", given, f"give a file or a run folder, or choose model={publisher}")


def layers_to_decay_over(plan: Plan) -> Problems:
    """Layer-wise rates need blocks to count."""
    decay = plan.spec.rates.layer_decay
    if decay is not None and not plan.evidence.model.blocks:
        given = f"{decay:g}, but {plan.spec.model.name} has no blocks to count"
        yield Problem("optimizer.layer_decay", given, "use null, or a model with blocks")


def batch_norm_needs_two(plan: Plan) -> Problems:
    """BatchNorm gets at least two samples at a time: one has no variance to estimate."""
    if not plan.evidence.model.batch_norm:
        return
    batching, num_train = plan.batching, plan.evidence.data.num_train
    if batching.micro_batch == 1:
        key = "train.batch_size" if batching.batch_size == 1 else "train.micro_batch"
        yield Problem(key, "1 with BatchNorm, which cannot estimate a variance from one sample", "at least 2")
        return
    reaches_tail = plan.horizon.total >= plan.horizon.per_epoch
    if reaches_tail and num_train % batching.batch_size % batching.micro_batch == 1:
        given = f"{num_train} samples leave a last micro-batch of 1, too few for BatchNorm to estimate a variance"
        yield Problem("train.batch_size", given, _without_tail_of_one(num_train, batching.batch_size))


def _without_tail_of_one(num_train: int, batch_size: int) -> str:
    """What to type so that an epoch's last batch has more than one sample."""
    near = (batch_size + sign * distance for distance in range(1, num_train) for sign in (1, -1))
    fitting = (size for size in near if 1 < size <= num_train and num_train % size != 1)
    size = next(fitting, None)
    return "use more data" if size is None else f"use train.batch_size={size} with train.micro_batch=null"


RULES = (
    same_kind,
    item_fits,
    enough_outputs,
    loss_fits_outputs,
    weights_are_published,
    layers_to_decay_over,
    batch_norm_needs_two,
)
