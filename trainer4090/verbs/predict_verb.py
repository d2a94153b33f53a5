"""`predict`: what a trained image model says of a file, or of every image in a folder."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer4090 import trained
from trainer4090.data.pipeline.image_tree import Leftovers, images_of
from trainer4090.disk import replacing
from trainer4090.errors import ConfigError, DataError, Problem, RunFolderError
from trainer4090.failure import exhaustion
from trainer4090.item_format import ImageFormat
from trainer4090.losses import LOSSES
from trainer4090.schema import Auto, Count, Fraction, PositiveFloat, PositiveInt
from trainer4090.signals import ending
from trainer4090.spec import DeviceWord
from trainer4090.trained import Trained
from trainer4090.traits import LossTraits
from trainer4090.verbs.options import read_options, to_stderr

Layout = Literal["csv", "jsonl"]
_MANY = 20
"""Unreadable files that are named; the number of the others is said."""


@dataclass(frozen=True)
class Options:
    """What may follow the verb."""

    input: str | None = None
    run: str = "latest"
    checkpoint: str = "best"
    out: str | None = None
    format: Auto | Layout = "auto"
    top: PositiveInt = 1
    threshold: Fraction = 0.5
    batch_size: PositiveInt = 64
    num_workers: Auto | Count = "auto"
    device: DeviceWord = "auto"
    memory_cap_gib: PositiveFloat | None = None


def run(words: Sequence[str]) -> int:
    """Write a row for every image of `input=`, as CSV or JSON lines.

    Raises:
        TrainerError: there is no such input or run, it is no image model, or a file is unreadable (the rows of all
            others are written before).
    """
    options = read_options(words, Options)
    paths = _images(options.input)
    layout, out = _layout(options), None if options.out is None else _output(Path(options.out))
    file = trained.find(options.run, options.checkpoint, to_stderr)
    unreadable: dict[str, str] = {}
    size = options.batch_size
    remedy = "use device=cpu" if size == 1 else f"use batch_size={size // 2}, which is {size} now, or device=cpu"
    stopped = ending("stopped", "no file was written" if out else "what was predicted stands above")
    with stopped, exhaustion(options.memory_cap_gib, remedy):
        model = trained.load(file, options.device, options.memory_cap_gib, to_stderr)
        rows = _rows(options, model, _format(model, file), paths, unreadable)
        to_stderr(f"{file} (update {model.step}) on {model.device}: {len(paths):,} images")
        with nullcontext() if out is None else replacing(out) as binary:
            for line in _lines(rows, layout):
                if binary is None:
                    print(line, end="", flush=True)
                else:
                    binary.write(line.encode())
    if unreadable:
        raise DataError(*_problems(unreadable))
    return 0


def _images(given: str | None) -> list[bytes]:
    """Paths of the images: the file itself, or all below the folder, sorted.

    Raises:
        ConfigError: no input is given.
        DataError: it does not exist or holds no image.
    """
    if given is None:
        raise ConfigError(Problem("input", "missing", "give an image, or a folder of images: input=PATH"))
    path = os.fsencode(os.path.expanduser(given))
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise DataError(Problem("input", f"{given} does not exist", "give an image, or a folder of images"))
    leftovers = Leftovers()
    parent, folder = os.path.split(os.path.realpath(path))
    names = [name[len(folder) + 1 :] for name in images_of(parent, [(0, folder)], leftovers).names]
    if not names:
        beside = f" (but {leftovers.describe()})" if leftovers.describe() else ""
        raise DataError(
            Problem("input", f"{given} holds no image{beside}", "give a folder of jpg, png, webp, ... files")
        )
    return [os.path.join(path, name) for name in names]


def _layout(options: Options) -> Layout:
    if options.format != "auto":
        return options.format
    return "jsonl" if options.out is not None and options.out.endswith((".jsonl", ".json")) else "csv"


def _output(path: Path) -> Path:
    """`path` itself, where a file can be written. An earlier one is replaced once the new one is complete.

    Raises:
        RunFolderError: it is a folder, or there is no folder for it.
    """
    if path.is_dir():
        raise RunFolderError(Problem("out", f"{path} is a folder", "give the path of a file"))
    if not path.absolute().parent.is_dir():
        raise RunFolderError(Problem("out", f"{path.parent} is no folder", "make it first, or give another path"))
    return path


def _format(model: Trained, file: Path) -> ImageFormat:
    """How the model wants its images.

    Raises:
        ConfigError: it takes none, or the file does not say how.
    """
    if isinstance(model.format, ImageFormat):
        return model.format
    spec = model.spec
    if model.data.kind == "tokens":
        remedy = "continue a text with: trainer4090 generate"
        raise ConfigError(Problem("checkpoint", f"{file} is model={spec.model.name}, trained on text", remedy))
    given = f"{file} does not say how an image becomes a sample of data={spec.data.name}"
    raise ConfigError(Problem("checkpoint", given, "let the data set return Data(..., format=ImageFormat(...))"))


def _rows(
    options: Options, model: Trained, image_format: ImageFormat, paths: list[bytes], unreadable: dict[str, str]
) -> Iterator[dict[str, Any]]:
    from trainer4090.data.pipeline.workers import num_processes
    from trainer4090.prediction import Files, Wish, predicted

    traits = LOSSES.get(model.spec.loss.name).traits
    stated = LossTraits() if traits is None else traits(model.spec.loss.config, model.data)
    return predicted(
        trained=model,
        files=Files(paths, image_format),
        kind=stated.outputs,
        wish=Wish(options.top, options.threshold),
        batch_size=options.batch_size,
        num_workers=num_processes(options.num_workers),
        unreadable=unreadable.__setitem__,
    )


def _lines(rows: Iterator[dict[str, Any]], layout: Layout) -> Iterator[str]:
    """The rows as text, a CSV's header first. Numbers are cut to 6 digits: the arithmetic has no more."""
    for number, row in enumerate(rows):
        values = {column: _rounded(value) for column, value in row.items()}
        if layout == "jsonl":
            yield json.dumps(values, ensure_ascii=False) + "\n"
            continue
        line = io.StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if number == 0:
            writer.writerow(values)
        writer.writerow(";".join(value) if isinstance(value, list) else value for value in values.values())
        yield line.getvalue()


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _problems(unreadable: dict[str, str]) -> list[Problem]:
    named = list(unreadable.items())[:_MANY]
    problems = [Problem(path, f"unreadable image ({reason})", "its row is left out") for path, reason in named]
    rest = len(unreadable) - len(named)
    if rest:
        problems.append(Problem("input", f"{rest} more files are unreadable", "their rows are left out"))
    return problems
