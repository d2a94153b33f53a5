"""Outputs of a model as people read them. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer4090.traits import DataTraits, OutputKind

Row = dict[str, Any]
"""Column -> value, `file` first."""


@dataclass(frozen=True)
class Wish:
    """What a row shall hold."""

    top: int
    """The most likely classes, where one is right."""
    threshold: float
    """Probability from which a label counts, where several can be right."""


def names_of(data: DataTraits, kind: OutputKind | None) -> tuple[str, ...]:
    """Name of each output, its number where the data has no names; () when the outputs are no classes."""
    if data.class_names or kind == "numbers" or data.num_classes < 2:
        return data.class_names
    return tuple(map(str, range(data.num_classes)))


def read_outputs(outputs: torch.Tensor, kind: OutputKind | None, names: Sequence[str], wish: Wish) -> list[Row]:
    """Columns for each sample of `outputs`, fp64 (n, outputs) on the host.

    `class_logits`: the `top` classes and their probabilities. `label_logits`: the labels from `threshold` on, and the
    probability of every label. Others: the largest output's class and the output itself, or all outputs when there are
    no names.
    """
    outputs = outputs.reshape(len(outputs), -1)
    named = [*names, *map(str, range(len(names), outputs.shape[1]))]
    if kind == "label_logits":
        return [_labelled(row, named, wish.threshold) for row in outputs.sigmoid().tolist()]
    if not names:
        columns = ["value"] if outputs.shape[1] == 1 else [f"value_{number}" for number in range(outputs.shape[1])]
        return [dict(zip(columns, row, strict=True)) for row in outputs.tolist()]
    scores, column = (outputs.softmax(1), "probability") if kind == "class_logits" else (outputs, "output")
    best = scores.topk(min(wish.top, scores.shape[1]), dim=1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [_ranked([named[index] for index in indices], values, column) for indices, values in pairs]


def _ranked(classes: Sequence[str], values: Sequence[float], column: str) -> Row:
    row: Row = {}
    for rank, (name, value) in enumerate(zip(classes, values, strict=True), start=1):
        suffix = "" if rank == 1 else f"_{rank}"
        row |= {f"class{suffix}": name, f"{column}{suffix}": value}
    return row


def _labelled(probabilities: Sequence[float], names: Sequence[str], threshold: float) -> Row:
    by_name = dict(zip(names, probabilities, strict=True))
    return {"classes": [name for name, value in by_name.items() if value >= threshold], **by_name}
