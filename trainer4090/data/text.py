"""Characters of a text, for language models."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.split import OpenFraction
from trainer4090.data.pipeline.windows import windows
from trainer4090.errors import DataError, Problem
from trainer4090.item_format import TokenFormat
from trainer4090.schema import Count, PositiveInt
from trainer4090.traits import DataTraits

BUILT_IN = "pydoc_data.topics"
"""English text that CPython carries; it differs between versions of Python, hence the hash in the description."""


@dataclass(frozen=True)
class Config:
    """Fields of `data=text`; `length` counts tokens a sample."""

    path: str | None = None
    length: PositiveInt = 128
    evaluation_fraction: OpenFraction = 0.1
    num_workers: Count = 0


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens: int32 (tokens,) for training and, from its tail, for evaluation."""

    vocabulary: str
    """Token t is character t of it."""
    train: np.ndarray
    evaluation: np.ndarray
    description: str


def traits(config: Config) -> DataTraits:
    """What the text holds."""
    corpus = load(config)
    parts = windows(len(corpus.train), len(corpus.evaluation), config.length)
    return DataTraits(
        kind="tokens",
        item_shape=(config.length,),
        num_classes=len(corpus.vocabulary),
        num_train=parts.num_train,
        num_evaluation=parts.num_evaluation,
        items_per_sample=config.length,
        in_memory=True,
        description=corpus.description,
    )


@DATA.register("text", Config, traits=traits)
def text(config: Config, seed: int) -> Data:
    """Characters of your own UTF-8 file (data.path), or of the English text that Python carries."""
    import torch

    from trainer4090.data.pipeline.prepare import unchanged
    from trainer4090.data.pipeline.sources import WindowSource

    corpus, length = load(config), config.length
    parts = windows(len(corpus.train), len(corpus.evaluation), length)
    return Data(
        train=WindowSource(torch.from_numpy(corpus.train), length, parts.num_train, parts.num_offsets, seed),
        evaluation=WindowSource(torch.from_numpy(corpus.evaluation), length, parts.num_evaluation, 1, seed),
        prepare=unchanged,
        format=TokenFormat("characters", corpus.vocabulary),
    )


def load(config: Config) -> Corpus:
    """The text as tokens; the vocabulary is its sorted distinct characters.

    Raises:
        DataError: the file is missing, no UTF-8, or too short for one window of training and one of evaluation.
    """
    name = config.path or BUILT_IN
    content = _read(Path(config.path)) if config.path else built_in()
    characters = np.frombuffer(content.encode("utf-32-le"), dtype=np.uint32)
    present = np.zeros(0x110000, dtype=bool)
    present[characters] = True
    tokens = (np.cumsum(present, dtype=np.int32) - 1)[characters]
    num_evaluation = int(len(tokens) * config.evaluation_fraction)
    shortest = min(num_evaluation, len(tokens) - num_evaluation)
    if shortest < config.length + 1:
        given = f"{len(tokens)} characters, {num_evaluation} of them for evaluation"
        remedy = f"each part needs data.length + 1 = {config.length + 1}: give a longer text or a smaller data.length"
        raise DataError(Problem(name, given, remedy))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Corpus(
        vocabulary="".join(map(chr, np.flatnonzero(present))),
        train=tokens[: len(tokens) - num_evaluation],
        evaluation=tokens[len(tokens) - num_evaluation :],
        description=f"{len(tokens):,} characters of {name}, sha256 {digest}",
    )


def built_in() -> str:
    """English text that this Python carries."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise DataError(Problem(str(path), "no such file", "give data.path a text file in UTF-8")) from error
    except OSError as error:
        raise DataError(Problem(str(path), f"unreadable ({error.strerror})", "give data.path a text file")) from error
    except UnicodeDecodeError as error:
        given = f"byte {error.start} is no UTF-8"
        raise DataError(Problem(str(path), given, "convert it: iconv -f latin1 -t utf-8 OLD > NEW")) from error
