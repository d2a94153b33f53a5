"""From a text to a folder of tokens that `data=tokens` reads, in memory that does not grow with the text."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, get_args

import numpy as np

from trainer4090.data.pipeline.token_files import (
    MANIFEST,
    TRAIN,
    VALIDATION,
    Manifest,
    TokenType,
    little_endian,
    manifest_text,
    narrowest,
)
from trainer4090.disk import sync_folder
from trainer4090.errors import DataError, Problem, RunFolderError
from trainer4090.item_format import TokenFormat, Tokenizer
from trainer4090.preparation import bpe
from trainer4090.preparation.text import Source
from trainer4090.tokenizer import code_points, encode, library, vocab_size

Piece = TypeVar("Piece", str, bytes)
Progress = Callable[[str, int], None]
"""Told what is being done and how many tokens (or characters) of it are done."""
_REMEDY = "give a folder that you may write, with enough space"


@dataclass(frozen=True)
class Wish:
    """What to make of a text."""

    tokenizer: str
    """`characters`, `bytes`, `bpe`, or the path of a tokenizer.json."""
    vocab_size: int
    """Largest number of tokens of a trained `bpe`."""
    val_fraction: float
    """The tail of the text that is held out, counted in characters, or in bytes with `bytes`."""


@dataclass(frozen=True)
class _Part:
    """A written file."""

    num_tokens: int
    sha256: str


def prepare(source: Source, wish: Wish, out: Path, progress: Progress) -> Manifest:
    """Write `train.bin`, `val.bin` and `tokens.json` as the new folder `out`, all of them or none.

    Raises:
        DataError: the text is empty, too short, or not UTF-8.
        RunFolderError: `out` holds something, or cannot be written.
        MachineError: the tokenizer's package is not installed.
    """
    with _new_folder(out) as folder:
        token_format, num_train, num_units = _measured(source, wish, progress)
        size = vocab_size(token_format)
        dtype = narrowest(size)
        train, validation = (
            _written(folder / name, _tokens(source, token_format, begin, end), dtype, partial(progress, name))
            for name, begin, end in ((TRAIN, 0, num_train), (VALIDATION, num_train, num_units))
        )
        manifest = Manifest(
            dtype=dtype,
            vocab_size=size,
            tokenizer=token_format.tokenizer,
            vocabulary=token_format.vocabulary,
            train_tokens=train.num_tokens,
            val_tokens=validation.num_tokens,
            train_sha256=train.sha256,
            val_sha256=validation.sha256,
            source=source.name,
        )
        with _new_file(folder / MANIFEST) as file:
            file.write(manifest_text(manifest).encode())
    return manifest


def _measured(source: Source, wish: Wish, progress: Progress) -> tuple[TokenFormat, int, int]:
    """The format of the tokens, and how many characters (or bytes) are for training, and in all.

    Raises:
        ConfigError: there is no such tokenizer.
        DataError: one of both parts is empty.
        MachineError: the tokenizer's package is not installed.
    """
    kind = wish.tokenizer
    # Before a long text is read: the file or the package may be missing.
    given = None if kind in get_args(Tokenizer) else TokenFormat("bpe", bpe.from_file(Path(kind)))
    if kind == "bpe":
        library(bpe.KEY)
    unit = "bytes" if kind == "bytes" else "characters"
    distinct, num_units = ("", source.num_bytes()) if unit == "bytes" else _characters(source, progress)
    num_train = num_units - int(num_units * wish.val_fraction)
    if num_train in (0, num_units):
        found = f"{num_units:,} {unit}, {num_units - num_train} of them held out" if num_units else "empty"
        raise DataError(Problem(source.name, found, "give a longer text"))
    if kind == "bpe":
        texts = _counted(_section(source.texts(), 0, num_train), partial(progress, "characters to learn from"))
        given = TokenFormat("bpe", bpe.trained(texts, wish.vocab_size))
    return given or TokenFormat("bytes" if unit == "bytes" else "characters", distinct), num_train, num_units


def _characters(source: Source, progress: Progress) -> tuple[str, int]:
    """The distinct characters of the text, sorted, and how many it has in all."""
    present = np.zeros(sys.maxunicode + 1, dtype=bool)
    num_characters = 0
    for text in source.texts():
        present[code_points(text)] = True
        num_characters += len(text)
        progress("characters read", num_characters)
    return "".join(map(chr, np.flatnonzero(present))), num_characters


def _tokens(source: Source, token_format: TokenFormat, begin: int, end: int) -> Iterator[np.ndarray]:
    """Tokens of the characters (or bytes) from `begin` to `end`, block by block."""
    if token_format.tokenizer == "bytes":
        return (np.frombuffer(block, dtype=np.uint8) for block in _section(source.blocks(), begin, end))
    texts = _section(source.texts(), begin, end)
    return (
        encode(text, token_format) for text in (bpe.whole_lines(texts) if token_format.tokenizer == "bpe" else texts)
    )


def _section(pieces: Iterable[Piece], begin: int, end: int) -> Iterator[Piece]:
    """What lies from `begin` to `end` when all pieces are put together."""
    position = 0
    for piece in pieces:
        if position >= end:
            return
        chosen = piece[max(begin - position, 0) : end - position]
        if chosen:
            yield chosen
        position += len(piece)


def _counted(texts: Iterable[str], progress: Callable[[int], None]) -> Iterator[str]:
    num_characters = 0
    for text in texts:
        yield text
        num_characters += len(text)
        progress(num_characters)


def _written(path: Path, blocks: Iterator[np.ndarray], dtype: TokenType, progress: Callable[[int], None]) -> _Part:
    digest, num_tokens = hashlib.sha256(), 0
    with _new_file(path) as file:
        for block in blocks:
            content = block.astype(little_endian(dtype)).tobytes()
            file.write(content)
            digest.update(content)
            num_tokens += len(block)
            progress(num_tokens)
    return _Part(num_tokens, digest.hexdigest())


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is on the disk when the block ends; half written it would survive in the folder's new name."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` when the block ends; after an error or a kill there is no `out`.

    Raises:
        RunFolderError: `out` holds something, or cannot be written.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunFolderError(Problem("out", f"{out} is not empty", "give a new folder, or remove this one first"))
        temporary.mkdir()
        yield temporary
        os.replace(temporary, out)  # takes the place of an empty folder
        sync_folder(out.parent)
    except OSError as error:
        raise RunFolderError(Problem("out", f"{out}: {error.strerror or error}", _REMEDY)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
