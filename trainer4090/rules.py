"""Knowledge across axes: small functions over a plan's facts, each yielding the problems that it sees.

Rules ask for facts, never for option names, so an option added later is covered as soon as it states its facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import ConfigError, DataError, Problem
from trainer4090.plan import Plan
from trainer4090.schema import suggestion
from trainer4090.spec import PUBLISHERS, Choice

Problems = Iterator[Problem]


def check(plan: Plan) -> None:
    """Raise unless `plan` can be run.

    Raises:
        ConfigError: with all problems of the configuration.
        DataError: the configuration is sound but the data set is too small for it, or has targets that are none.
    """
    problems = [problem for rule in RULES for problem in rule(plan)]
    if problems:
        raise ConfigError(*problems)
    faults = [fault for rule in DATA_RULES for fault in rule(plan)]
    if faults:
        raise DataError(*faults)


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
    whole = batching.batch_size // batching.data_ranks
    if batching.micro_batch * batching.accumulation != whole:
        valid = [size for size in range(1, whole + 1) if whole % size == 0]
        below = max((size for size in valid if size < batching.micro_batch), default=None)
        above = min((size for size in valid if size > batching.micro_batch), default=None)
        nearest = " or ".join(str(size) for size in (below, above) if size is not None)
        given = f"{batching.micro_batch} does not divide train.batch_size={batching.batch_size}"
        yield Problem("train.micro_batch", given, f"the nearest that do: {nearest}")


def cards_fit(plan: Plan) -> Problems:
    """No more cards than the parallelism uses."""
    cards = plan.spec.root.cards
    if cards != "auto" and cards > plan.parallelism.max_cards:
        name = plan.spec.parallelism.name
        given = f"{cards}, but parallelism={name} uses {plan.parallelism.max_cards}"
        yield Problem("cards", given, f"use cards={plan.parallelism.max_cards}")


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


def blocks_needed(plan: Plan) -> Problems:
    """An option that works on blocks has some."""
    if plan.memory.needs_blocks and not plan.evidence.model.blocks:
        given = f"{_names(plan.spec.memory)} works on blocks, and {plan.spec.model.name} has none: only lone layers"
        yield Problem("memory", given, "use memory=none, or a model with blocks")


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


def targets_are_classes(plan: Plan) -> Problems:
    """Every target is a class, or the one that the loss ignores."""
    problem = plan.evidence.data.target_problem(plan.loss.ignore_index)
    if problem is not None:
        yield problem


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


def enough_samples(plan: Plan) -> Problems:
    """At least one whole batch of training samples, and something to evaluate on."""
    data, batch_size = plan.evidence.data, plan.batching.batch_size
    if data.num_train < batch_size:
        given = f"{data.num_train} training samples are fewer than train.batch_size={batch_size}"
        yield Problem("data", given, f"use train.batch_size={max(data.num_train, 1)} or more data")
    if data.num_evaluation == 0:
        yield Problem("data", "no samples are held out for evaluation", "use more data or a larger held-out part")


RULES = (
    one_length,
    batch_divides,
    cards_fit,
    same_kind,
    item_fits,
    enough_outputs,
    loss_fits_outputs,
    blocks_needed,
    weights_are_published,
    layers_to_decay_over,
    batch_norm_needs_two,
    best_by_is_evaluated,
    improvement_needs_patience,
)
DATA_RULES = (enough_samples, targets_are_classes)


def _names(choices: tuple[Choice, ...]) -> str:
    return ", ".join(choice.name for choice in choices)
