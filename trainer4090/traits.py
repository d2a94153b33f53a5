"""What data, model and loss state of themselves before anything is built, and the facts that options read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from trainer4090.card import Card
from trainer4090.errors import Problem
from trainer4090.records import Batching, Notice

ItemKind = str
"""What an item is: `images`, `tokens`, or a word of one's own that data and model agree on."""
OutputKind = Literal["class_logits", "label_logits", "numbers"]


@dataclass(frozen=True)
class DataTraits:
    """What is known of a data set without loading it into torch."""

    kind: ItemKind
    item_shape: tuple[int, ...]
    """(channels, height, width) of an image, (length,) of a token sequence."""
    num_classes: int
    """Classes or labels of an image set, distinct tokens of a text."""
    num_train: int
    """Training samples: images or sequences."""
    num_evaluation: int
    items_per_sample: int
    """1 for an image, the number of target tokens for a sequence."""
    in_memory: bool
    """Samples are read from memory, so worker processes would only copy them once more."""
    description: str = ""
    class_names: tuple[str, ...] = ()
    """Name of class 0, 1, ...; () when the data has none."""
    multi_label: bool = False
    """Targets are float (batch, num_classes), 1 for each label that a sample has and 0 for the others."""
    smallest_target: int = 0
    """1 where classes are numbered from 1 and class 0 stays empty."""
    targets_checked: bool = False
    """Every target was found to lie in [0, num_classes), so nobody need read all of them once more."""
    target_problem: Callable[[int | None], Problem | None] = lambda ignore_index: None
    """Target that the loss ignores -> what is wrong with the targets, or None."""
    notices: tuple[Notice, ...] = ()
    """What is otherwise in the files than one would expect; the plan prints it."""
    fingerprint: str = ""
    """Differs when the training samples are others, so that a resume can refuse them; "" when it is not known."""


@dataclass(frozen=True)
class ModelTraits:
    """What is known of a model without building it."""

    kind: ItemKind
    batch_norm: bool
    dropout: bool
    channels_last: bool
    """Gains from channels_last memory format on tensor cores (two-dimensional convolutions)."""
    attention: bool | None = None
    """Calls torch's scaled_dot_product_attention; None where nobody has said."""
    blocks: bool = True
    """Has blocks that form a chain (see `Part`)."""
    compiled_in_units: bool = False
    """Compiled submodule by submodule (`Model.compile_units`): what is between them runs in eager."""
    num_outputs: int | None = None
    """Explicit number of classes or tokens; None follows the data."""
    head: str | None = None
    """Layer of a language model whose output, logits of tokens, is the model's; None where there is no such layer."""
    published: str | None = None
    """Word of `model.weights` for the weights that the model's authors publish, None where there are none."""
    item_problem: Callable[[tuple[int, ...]], Problem | None] = lambda item_shape: None
    """Shape of an item of the right kind -> why the model cannot take it, or None."""


@dataclass(frozen=True)
class LossTraits:
    """What is known of a loss without building it."""

    ignore_index: int | None = None
    """Target that counts as no target."""
    num_outputs: int | None = None
    """The only number of outputs that the loss fits, None for any."""
    outputs: OutputKind | None = None
    """What it trains outputs to be: logits of a softmax, logits of single labels, numbers; None says nothing."""
    metrics: Mapping[str, bool | None] = field(default_factory=dict)
    """Name of every metric that the built loss brings -> whether higher is better."""


@dataclass(frozen=True)
class Facts:
    """What an option's builder may read besides its own Config."""

    card: Card
    batching: Batching
    model: ModelTraits
    data: DataTraits
