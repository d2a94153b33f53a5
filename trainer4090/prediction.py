"""What a trained image model says of files: one row a file, in the order given. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from trainer4090.data.pipeline.decode import UnreadableImageError, decode
from trainer4090.data.pipeline.image_tree import printable
from trainer4090.data.pipeline.prepare_images import normalising
from trainer4090.data.pipeline.workers import Fetched, fetch_in_workers
from trainer4090.item_format import ImageFormat
from trainer4090.records import OutputKind
from trainer4090.trained import Trained

Row = dict[str, Any]
"""Column -> value, `file` first."""


@dataclass(frozen=True)
class Wish:
    """What a row shall hold."""

    top: int
    """The most likely classes, where one is right."""
    threshold: float
    """Probability from which a label counts, where several can be right."""


@dataclass(frozen=True)
class Files:
    """Decodes files as held-out samples are decoded; pickled for worker processes."""

    paths: Sequence[bytes]
    format: ImageFormat

    def __call__(self, part: range) -> Fetched:
        """Pixels uint8 (n, channels, height, width), and bool (n,): whether each file is readable. Others are black."""
        pixels = torch.zeros(
            (len(part), self.format.channels, self.format.height, self.format.width), dtype=torch.uint8
        )
        readable = torch.ones(len(part), dtype=torch.bool)
        for row, index in enumerate(part):
            try:
                pixels[row] = decode(self.paths[index], self.format)
            except UnreadableImageError:
                readable[row] = False
        return Fetched(pixels, readable)

    def reason(self, index: int) -> str:
        """Why file `index` is unreadable."""
        try:
            decode(self.paths[index], self.format)
        except UnreadableImageError as error:
            return str(error)
        return "was unreadable a while ago"


def predicted(
    trained: Trained,
    files: Files,
    kind: OutputKind | None,
    wish: Wish,
    batch_size: int,
    num_workers: int,
    unreadable: Callable[[str, str], None],
) -> Iterator[Row]:
    """A row for every readable file; `unreadable` is told path and reason of the others."""
    prepare, module = normalising(files.format.mean, files.format.deviation), trained.model.module
    parts = [
        range(begin, min(begin + batch_size, len(files.paths))) for begin in range(0, len(files.paths), batch_size)
    ]
    names = class_names(trained)
    with closing(_fetched(files, parts, num_workers)) as batches:
        for part, batch in zip(parts, batches, strict=True):
            with torch.no_grad():
                outputs = module(prepare(batch.inputs.to(trained.device)))
            readable = batch.targets.tolist()
            rows = read_outputs(outputs.double().cpu(), kind, names, wish)
            for index, good, row in zip(part, readable, rows, strict=True):
                path = printable(files.paths[index])
                if good:
                    yield {"file": path, **row}
                else:
                    unreadable(path, files.reason(index))


def class_names(trained: Trained) -> tuple[str, ...]:
    """Name of each output, its number where the data has no names; () when the outputs are no classes."""
    num_classes = trained.data.num_classes
    return trained.data.class_names or (tuple(map(str, range(num_classes))) if num_classes > 1 else ())


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


def _fetched(files: Files, parts: Sequence[range], num_workers: int) -> Generator[Fetched, None, None]:
    # A process takes a second to start, which a few files do not win back.
    if num_workers and len(parts) > 1:
        yield from fetch_in_workers(files, iter(parts), num_workers, pin=False)
    else:
        yield from map(files, parts)
