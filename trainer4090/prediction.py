"""What a trained image model says of files: one row a file, in the order given. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from trainer4090.data.pipeline.decode import UnreadableImageError, decode
from trainer4090.data.pipeline.image_tree import printable
from trainer4090.data.pipeline.prepare_images import normalising
from trainer4090.data.pipeline.workers import Fetched, fetch_in_workers
from trainer4090.item_format import ImageFormat
from trainer4090.outputs import Row, Wish, names_of, read_outputs
from trainer4090.trained import Trained
from trainer4090.traits import OutputKind


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
    names = names_of(trained.data, kind)
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


def _fetched(files: Files, parts: Sequence[range], num_workers: int) -> Generator[Fetched, None, None]:
    # A process takes a second to start, which a few files do not win back.
    if num_workers and len(parts) > 1:
        yield from fetch_in_workers(files, iter(parts), num_workers, pin=False)
    else:
        yield from map(files, parts)
