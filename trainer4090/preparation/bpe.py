"""Byte-pair encodings by the package `tokenizers`. Imports it inside functions only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from trainer4090.errors import ConfigError, DataError, Problem
from trainer4090.item_format import Tokenizer
from trainer4090.schema import suggestion
from trainer4090.tokenizer import library

KEY = "tokenizer"
NUM_BYTES = 256
_LINE_BREAK = re.compile(r"(?<=\S)\n(?=\S)")


def trained(texts: Iterable[str], vocab_size: int) -> str:
    """JSON of a byte-level encoding trained on `texts`; a small text gives fewer than `vocab_size` tokens.

    Every text can be written with it: the first 256 tokens are the bytes.

    Raises:
        MachineError: the package is not installed.
    """
    tokenizers = library(KEY)
    encoding = tokenizers.Tokenizer(tokenizers.models.BPE())
    encoding.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    encoding.train_from_iterator(whole_lines(texts), trainer)
    return encoding.to_str()


def from_file(path: Path) -> str:
    """JSON of the encoding in `path`, a `tokenizer.json`.

    Raises:
        ConfigError: there is no such file.
        DataError: it is none.
        MachineError: the package is not installed.
    """
    if not path.is_file():
        remedy = f"{suggestion(str(path), get_args(Tokenizer), 'tokenizers')}, or the path of a tokenizer.json"
        raise ConfigError(Problem(KEY, f"{str(path)!r} is no tokenizer and no file", remedy))
    tokenizers = library(KEY)
    try:
        return tokenizers.Tokenizer.from_file(str(path)).to_str()
    except Exception as error:  # the package raises plain Exception
        given = f"no tokenizer.json ({' '.join(str(error).split())})"
        raise DataError(Problem(str(path), given, "give a file that the package tokenizers has saved")) from error


def whole_lines(texts: Iterable[str]) -> Iterator[str]:
    """The same text, cut only where a cut does not change how byte-level encodings split it.

    They take a run of blanks together, so that is behind a line break between two characters that are no blanks.
    """
    kept = ""
    for text in texts:
        kept += text
        end = max((match.end() for match in _LINE_BREAK.finditer(kept)), default=0)
        if end:
            yield kept[:end]
            kept = kept[end:]
    if kept:
        yield kept
