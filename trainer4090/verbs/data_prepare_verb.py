"""`data prepare`: from a text to the token files that `data=tokens` trains on."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from trainer4090 import preparation
from trainer4090.data.pipeline.split import OpenFraction
from trainer4090.errors import ConfigError, Problem
from trainer4090.preparation import Wish, bpe
from trainer4090.preparation.text import source
from trainer4090.schema import Range
from trainer4090.signals import ending
from trainer4090.verbs.options import read_options

DEFAULT_VOCAB_SIZE = 8192
_REPORT_EVERY_S = 5.0


@dataclass(frozen=True)
class Options:
    """What may follow the verb."""

    source: str | None = None
    out: str | None = None
    tokenizer: str = "characters"
    vocab_size: Annotated[int, Range(low=bpe.NUM_BYTES, high=2**31 - 1)] | None = None
    val_fraction: OpenFraction = 0.1


def run(words: Sequence[str]) -> int:
    """Write the folder `out=` from the text `source=`.

    Raises:
        TrainerError: the text is unusable, the folder is taken, a package is missing, or a signal came.
    """
    options = read_options(words, Options)
    problems = []
    if options.out is None:
        problems.append(Problem("out", "missing", "give the folder to write: out=FOLDER"))
    if options.vocab_size is not None and options.tokenizer != "bpe":
        given = f"{options.vocab_size} with tokenizer={options.tokenizer}"
        problems.append(Problem("vocab_size", given, "it is for tokenizer=bpe: leave it out"))
    if problems or options.out is None:
        raise ConfigError(*problems)
    wish = Wish(options.tokenizer, options.vocab_size or DEFAULT_VOCAB_SIZE, options.val_fraction)
    with ending("stopped, nothing was written", "the same command starts again"):
        made = preparation.prepare(source(options.source), wish, Path(options.out), Progress().show)
    tokens = f"{made.train_tokens:,} training and {made.val_tokens:,} held-out tokens ({made.dtype})"
    print(f"{options.out}: {tokens}, {made.tokenizer} with a vocabulary of {made.vocab_size:,}, of {made.source}")
    print(f"train: trainer4090 data=tokens data.path={options.out} model=gpt_tiny")
    return 0


@final
class Progress:
    """Lines on stderr, at most one in five seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _REPORT_EVERY_S

    def show(self, what: str, count: int) -> None:
        """Print how far it is, when there is time for it."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY_S
            print(f"{what}: {count:,}", file=sys.stderr, flush=True)
