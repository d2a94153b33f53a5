"""From text to tokens and back, by a `TokenFormat`. Imports no torch, and `tokenizers` only for its own formats."""

from __future__ import annotations

import codecs
import importlib
from functools import lru_cache
from typing import Any, Protocol, final

import numpy as np

from trainer4090.errors import ConfigError, MachineError, Problem
from trainer4090.item_format import TokenFormat

PENDING = "\ufffd"
"""What a decoded text ends with while a character is not complete."""
_LONGEST_WAIT = 32
"""Tokens that may end in no complete character; a character is spread over 4 at most, so the rest is no UTF-8."""
_SHOWN = 5


def library(key: str) -> Any:
    """The module `tokenizers`.

    Raises:
        MachineError: it is not installed; `key` is named as what needs it.
    """
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        remedy = "type: pip install 'trainer4090[tokenizers]'"
        raise MachineError(Problem(key, "needs the package tokenizers, which is not installed", remedy)) from error


def vocab_size(token_format: TokenFormat) -> int:
    """The largest token that the format knows, + 1."""
    if token_format.tokenizer == "bytes":
        return 256
    if token_format.tokenizer == "characters":
        return len(token_format.vocabulary)
    return max(_pieces(token_format.vocabulary).get_vocab(with_added_tokens=True).values()) + 1


def encode(text: str, token_format: TokenFormat, key: str = "text") -> np.ndarray:
    """Tokens of `text`, uint32 (tokens,).

    Raises:
        ConfigError: a character is not in the vocabulary; `key` is named as where it stands.
        MachineError: the package of the format is not installed.
    """
    if token_format.tokenizer == "bytes":
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
    if token_format.tokenizer == "bpe":
        # `encode` also notes where each token lies in the text, which takes twice as long.
        encoded = _pieces(token_format.vocabulary).encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoded[0].ids, dtype=np.uint32)
    known, given = code_points(token_format.vocabulary), code_points(text)
    order = known.argsort()
    places = np.searchsorted(known, given, sorter=order).clip(max=max(len(known) - 1, 0))
    found = known[order[places]] == given
    if not found.all():
        raise ConfigError(_unknown_characters(given[~found], len(known), key))
    return order[places].astype(np.uint32)


def code_points(text: str) -> np.ndarray:
    """Characters of `text` as numbers, uint32 (characters,)."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class Decoder(Protocol):
    """Tokens that come one by one, as text that never shows a part of a character."""

    def feed(self, token: int) -> str:
        """What `token` completes; empty while a character is not complete."""
        ...

    def flush(self) -> str:
        """What is left, a part of a character as a replacement mark."""
        ...


def decoder(token_format: TokenFormat) -> Decoder:
    """A decoder at the beginning of a text.

    Raises:
        MachineError: the package of the format is not installed.
    """
    if token_format.tokenizer == "characters":
        return _CharacterDecoder(token_format.vocabulary)
    return _ByteDecoder() if token_format.tokenizer == "bytes" else _PieceDecoder(_pieces(token_format.vocabulary))


@final
class _CharacterDecoder:
    def __init__(self, vocabulary: str) -> None:
        self._vocabulary = vocabulary

    def feed(self, token: int) -> str:
        return self._vocabulary[token]

    def flush(self) -> str:
        return ""


@final
class _ByteDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._utf8.decode(bytes((token,)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


@final
class _PieceDecoder:
    """Decodes the newest tokens behind the ones before, because a piece's blanks can depend on its neighbour."""

    def __init__(self, pieces: Any) -> None:
        self._pieces = pieces
        self._before: list[int] = []
        self._newest: list[int] = []
        self._num_shown = 0

    def feed(self, token: int) -> str:
        self._newest.append(token)
        text = self._text()
        whole = text.rstrip(PENDING)
        if whole == text or len(self._newest) > _LONGEST_WAIT:
            return self._commit(text)
        shown, self._num_shown = whole[self._num_shown :], max(len(whole), self._num_shown)
        return shown

    def flush(self) -> str:
        return self._commit(self._text())

    def _commit(self, text: str) -> str:
        shown = text[self._num_shown :]
        self._before, self._newest, self._num_shown = self._newest, [], 0
        return shown

    def _text(self) -> str:
        def decoded(tokens: list[int]) -> str:
            return self._pieces.decode(tokens, skip_special_tokens=False)

        return decoded(self._before + self._newest)[len(decoded(self._before)) :]


@lru_cache(maxsize=2)
def _pieces(vocabulary: str) -> Any:
    pieces = library("tokenizer").Tokenizer.from_str(vocabulary)
    # A file made for training with fixed lengths would cut or fill every text.
    pieces.no_truncation()
    pieces.no_padding()
    return pieces


def _unknown_characters(given: np.ndarray, num_known: int, key: str) -> Problem:
    missing = [chr(character) for character in dict.fromkeys(given.tolist())]
    shown = ", ".join(map(repr, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
    verb = "is" if len(missing) == 1 else "are"
    return Problem(key, f"{shown} {verb} not in the vocabulary", f"use the {num_known} characters of its training text")
