"""Folders of token files: `train.bin`, `val.bin`, and `tokens.json` when we made them. Imports no torch.

A `.bin` is raw little-endian integers, the layout of nanoGPT: Karpathy, github.com/karpathy/nanoGPT, data/*/prepare.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from trainer4090.errors import DataError, Problem
from trainer4090.item_format import TokenFormat, Tokenizer
from trainer4090.schema import Count, PositiveInt, read

TokenType = Literal["uint16", "uint32"]
TRAIN, VALIDATION, MANIFEST = "train.bin", "val.bin", "tokens.json"
MAKE_ONE = "trainer4090 data prepare source=TEXT out=FOLDER makes one"
_SCAN_TOKENS = 2**22
"""Tokens that are looked at together: 8 or 16 MiB."""
_LARGEST = 2**31 - 1
_WIDE_SAMPLE = 4096


@dataclass(frozen=True)
class Manifest:
    """Content of `tokens.json`: what the two files beside it hold."""

    dtype: TokenType
    vocab_size: PositiveInt
    tokenizer: Tokenizer
    vocabulary: str
    train_tokens: Count
    val_tokens: Count
    train_sha256: str
    val_sha256: str
    source: str

    @property
    def format(self) -> TokenFormat:
        """From a text to these tokens and back."""
        return TokenFormat(self.tokenizer, self.vocabulary)


@dataclass(frozen=True)
class TokenFile:
    """A file of raw tokens. It is small when it is pickled, and nothing stays open between two uses."""

    path: Path
    dtype: TokenType
    num_tokens: int

    def mapped(self) -> np.ndarray:
        """Its tokens, uint16 or uint32 (num_tokens,), read-only and mapped anew.

        A mapping that is kept counts every page that was ever touched to the memory of the process.

        Raises:
            DataError: the file is not there any more, or has become shorter.
        """
        try:
            return np.memmap(self.path, little_endian(self.dtype), mode="r", shape=(self.num_tokens,))
        except (OSError, ValueError) as error:
            raise DataError(Problem(str(self.path), f"was changed while in use ({error})", "leave it alone")) from error


def little_endian(dtype: TokenType) -> np.dtype[Any]:
    """The type in a file, on every machine."""
    return np.dtype(dtype).newbyteorder("<")


def narrowest(vocab_size: int) -> TokenType:
    """The type that holds every token below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def manifest_text(manifest: Manifest) -> str:
    """Text of `tokens.json`."""
    return json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"


def read_manifest(path: Path) -> Manifest | None:
    """The manifest in `path`, None when there is no such file.

    Raises:
        DataError: it is damaged.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(Problem(str(path), f"unreadable ({' '.join(str(error).split())})", MAKE_ONE)) from error
    problems: list[Problem] = []
    manifest = read(Manifest, tree, str(path), problems)
    if manifest is None:
        raise DataError(*problems)
    return manifest


def open_file(path: Path, dtype: Literal["auto"] | TokenType, stated: int | None, shortest: int) -> TokenFile:
    """The file `path`, whose size fits; `stated` tokens if its manifest counts them, at least `shortest`.

    Raises:
        DataError: it is missing, of a wrong size, or seems to hold another type.
    """
    try:
        num_bytes = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise DataError(Problem(str(path), f"unreadable ({error.strerror})", MAKE_ONE)) from error
    if num_bytes is None:
        raise DataError(Problem(str(path), "no such file", f"give data.path a folder with {TRAIN} and {VALIDATION}"))
    found: TokenType = "uint16" if dtype == "auto" else dtype
    size = little_endian(found).itemsize
    if num_bytes % size:
        given = f"{num_bytes} bytes are no whole number of {found} tokens"
        raise DataError(Problem(str(path), given, f"copy it again, or give data.dtype={_other(found)}"))
    file = TokenFile(path, found, num_bytes // size)
    if stated not in (None, file.num_tokens):
        given = f"{file.num_tokens:,} tokens, but {MANIFEST} counts {stated:,}"
        raise DataError(Problem(str(path), given, "copy the whole folder again"))
    if file.num_tokens < shortest:
        given = f"{file.num_tokens:,} tokens"
        remedy = f"data.length + 1 = {shortest} are needed: give more text or a smaller data.length"
        raise DataError(Problem(str(path), given, remedy))
    if dtype == "auto" and _seems_wide(file):
        given = "every second uint16 is 0, as if it held uint32"
        raise DataError(Problem(str(path), given, "give data.dtype=uint32, or uint16 if it is right"))
    return file


def largest_token(file: TokenFile) -> int:
    """The largest token of the file. Reads all of it once a process, block by block.

    Raises:
        DataError: it is no token, but a number that no vocabulary reaches.
    """
    largest = _largest(file, file.path.stat().st_mtime_ns)
    if largest > _LARGEST:
        remedy = f"no vocabulary is that large: give the data.dtype that it was written with, {_other(file.dtype)}?"
        raise DataError(Problem(str(file.path), f"token {largest}", remedy))
    return largest


def first_outside(file: TokenFile, vocab_size: int) -> tuple[int, int]:
    """`(position, token)` of the first token that is not below `vocab_size`; there is one."""
    tokens = file.mapped()
    for begin in range(0, len(tokens), _SCAN_TOKENS):
        outside = np.flatnonzero(tokens[begin : begin + _SCAN_TOKENS] >= vocab_size)
        if len(outside):
            position = begin + int(outside[0])
            return position, int(tokens[position])
    raise ValueError(f"all tokens of {file.path} are below {vocab_size}")


@lru_cache(maxsize=16)
def _largest(file: TokenFile, changed_ns: int) -> int:
    tokens = file.mapped()
    return max(int(tokens[begin : begin + _SCAN_TOKENS].max()) for begin in range(0, len(tokens), _SCAN_TOKENS))


def _seems_wide(file: TokenFile) -> bool:
    sample = file.mapped()[:_WIDE_SAMPLE]
    return bool(sample.any()) and not sample[1::2].any()


def _other(dtype: TokenType) -> str:
    return next(other for other in get_args(TokenType) if other != dtype)
