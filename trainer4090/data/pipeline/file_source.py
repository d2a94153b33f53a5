"""Image files as samples, decoded when they are asked for. Imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from trainer4090.data import Source
from trainer4090.data.pipeline.batch_memory import new_samples
from trainer4090.data.pipeline.crops import NUM_ATTEMPTS, NUMBERS_AN_ATTEMPT, Box, random_box
from trainer4090.data.pipeline.decode import (
    ImageFile,
    UnreadableImageError,
    decode,
    held_out_box,
    opened,
    write_sample,
)
from trainer4090.data.pipeline.hashing import draws, key
from trainer4090.data.pipeline.image_tree import ImageFiles, printable
from trainer4090.errors import DataError, Problem
from trainer4090.item_format import ImageFormat

READ_AHEAD = 16
"""Files that are read before the first of them is decoded: 8 % less CPU time than in turn (AMD EPYC), since decoding an
image evicts all that reading needs from the processor's cache."""
_CROP_STREAM = 5
_HALF = 2**32
BoxOf = Callable[[int, int], Box]
"""(width, height) of an image -> the part of it that becomes the sample."""


@dataclass(frozen=True, eq=False)
class FileSource:
    """Sample i is image file i of a split; make it with `file_source`.

    Its tensors move to shared memory when it is pickled for worker processes: a million names lie there once.
    """

    folder: bytes
    names: torch.Tensor
    """uint8, all paths below `folder` one after the other."""
    ends: torch.Tensor
    """int64 (files + 1,): path i is names[ends[i]:ends[i + 1]]."""
    labels: torch.Tensor
    """int64 (files,), ascending."""
    format: ImageFormat
    seed: int
    smallest_crop: float | None
    """Share of the area that a random crop keeps at least; None for the crop of held-out images."""
    max_errors: int | None
    """Unreadable files that are replaced before it is too many; None for none at all."""
    unreadable: torch.Tensor
    """bool (files,): those that were met by any process that reads from this source."""

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.labels)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images uint8 (n, channels, height, width) with channels last in memory, and labels int64 (n,).

        An unreadable file is replaced by the next readable one of its class, which is a function of the files alone.

        Raises:
            DataError: a file is unreadable, or too many are.
        """
        boxes, chosen = self._boxes(indices, epoch), indices.tolist()
        samples = new_samples(len(chosen), self.format)
        places = samples.split(1)
        with torch.inference_mode():  # 2 % less (AMD EPYC): no operation asks whether a gradient is wanted
            for begin in range(0, len(chosen), READ_AHEAD):
                part = slice(begin, begin + READ_AHEAD)
                files = list(map(self._opened, chosen[part], boxes[part]))
                for index, file, box_of, place in zip(chosen[part], files, boxes[part], places[part], strict=True):
                    self._write(index, file, box_of, place)
        return samples, self.targets(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """Labels int64 (n,)."""
        return self.labels.index_select(0, indices)

    def resident(self, device: torch.device) -> Source:
        """Itself: files are decoded by the CPU."""
        return self

    def path(self, index: int) -> bytes:
        """Path of file `index`."""
        ends = self.ends.numpy()  # views of NumPy: five times faster to index than tensors
        return b"%b/%b" % (self.folder, self.names.numpy()[ends[index] : ends[index + 1]].tobytes())

    def reason(self, index: int) -> str:
        """Path of the unreadable file `index`, and what is wrong with it."""
        try:
            decode(self.path(index), self.format)
        except UnreadableImageError as error:
            return f"{printable(self.path(index))}: unreadable image ({error})"
        return f"{printable(self.path(index))}: was unreadable a while ago"

    def _opened(self, index: int, box_of: BoxOf) -> ImageFile | None:
        """File `index`; None where `_replace` says what is wrong with it, or takes another."""
        if self.unreadable.numpy()[index]:
            return None
        try:
            return opened(self.path(index), self.format, box_of)
        except UnreadableImageError:
            return None

    def _write(self, index: int, file: ImageFile | None, box_of: BoxOf, place: torch.Tensor) -> None:
        """Fill `place` with sample `index`, whose file was opened, or with the next that is readable."""
        if file is not None:
            try:
                write_sample(file, box_of, place)
                return
            except UnreadableImageError as error:
                self._note(index, error)
        self._replace(index, box_of, place)

    def _replace(self, index: int, box_of: BoxOf, place: torch.Tensor) -> None:
        unreadable = self.unreadable.numpy()
        for candidate in _candidates(self.labels, index):
            if unreadable[candidate]:
                continue
            try:
                write_sample(opened(self.path(candidate), self.format, box_of), box_of, place)
                return
            except UnreadableImageError as error:
                self._note(candidate, error)
        folder = printable(os.path.dirname(self.path(index)))
        raise DataError(Problem(folder, "no readable image of this class is left", "give it some"))

    def _note(self, index: int, error: UnreadableImageError) -> None:
        where = printable(self.path(index))
        given = f"unreadable image ({error})"
        if self.max_errors is None:
            remedy = "repair or remove it, or replace up to data.max_errors such files by data.on_error=skip"
            raise DataError(Problem(where, given, remedy)) from error
        self.unreadable[index] = True
        number = int(self.unreadable.sum())
        if number > self.max_errors:
            given += f", number {number} of this split with data.max_errors={self.max_errors}"
            raise DataError(Problem(where, given, "repair or remove these files, or raise data.max_errors")) from error

    def _boxes(self, indices: torch.Tensor, epoch: int) -> list[BoxOf]:
        """For each sample: (width, height) of its image -> the box that is cropped."""
        if epoch < 0 or self.smallest_crop is None:
            return [held_out_box(self.format)] * len(indices)
        random = partial(random_box, size=(self.format.height, self.format.width), smallest=self.smallest_crop)
        return [partial(random, attempts=attempts) for attempts in _attempts(self.seed, epoch, indices)]


def _candidates(labels: torch.Tensor, index: int) -> Iterator[int]:
    """`index`, then the files of its class that follow, beginning anew after the last."""
    yield index
    label = labels[index : index + 1]
    begin, end = int(torch.searchsorted(labels, label)), int(torch.searchsorted(labels, label, right=True))
    yield from range(index + 1, end)
    yield from range(begin, index)


def _attempts(seed: int, epoch: int, indices: torch.Tensor) -> list[list[list[float]]]:
    """For each sample NUM_ATTEMPTS x NUMBERS_AN_ATTEMPT numbers in [0, 1), a function of (seed, epoch, sample)."""
    num_draws = NUM_ATTEMPTS * NUMBERS_AN_ATTEMPT // 2
    bits = torch.stack([draws(key(seed, _CROP_STREAM, epoch, draw), indices) for draw in range(num_draws)], dim=1)
    halves = torch.stack([bits & (_HALF - 1), (bits >> 32) & (_HALF - 1)], dim=2)
    return (halves.double() / _HALF).reshape(len(indices), NUM_ATTEMPTS, NUMBERS_AN_ATTEMPT).tolist()


def file_source(
    files: ImageFiles, item_format: ImageFormat, seed: int, smallest_crop: float | None, max_errors: int | None
) -> FileSource:
    """A source of the files of a split."""
    lengths = torch.tensor([0, *map(len, files.names)], dtype=torch.int64)
    names = torch.frombuffer(bytearray(b"".join(files.names)), dtype=torch.uint8)
    return FileSource(
        folder=files.folder,
        names=names,
        ends=lengths.cumsum(0),
        labels=torch.from_numpy(files.labels),
        format=item_format,
        seed=seed,
        smallest_crop=smallest_crop,
        max_errors=max_errors,
        unreadable=torch.zeros(len(files.names), dtype=torch.bool),
    )


def unreadable_since(sources: Sequence[FileSource]) -> Callable[[], list[str]]:
    """A function that returns a line for every unreadable file that was met since its last call."""
    told: list[set[int]] = [set() for _ in sources]

    def news() -> list[str]:
        lines = []
        for source, known in zip(sources, told, strict=True):
            for index in source.unreadable.nonzero().flatten().tolist():
                if index not in known:
                    known.add(index)
                    count = f"{len(known)} of at most {source.max_errors} in this split"
                    lines.append(f"{source.reason(index)}; the next one of its class takes its place ({count})")
        return lines

    return news
