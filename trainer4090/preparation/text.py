"""A text in one file, in many, or the one that Python carries: read in blocks, so that its size does not matter."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer4090.data.text import BUILT_IN, built_in
from trainer4090.errors import DataError, Problem

BLOCK_BYTES = 2**20
_BETWEEN_FILES = b"\n"


@dataclass(frozen=True)
class Source:
    """Where a text lies."""

    name: str
    files: tuple[Path, ...]
    """In the order in which they are read; () for the text that Python carries."""

    def num_bytes(self) -> int:
        """Size of the whole text.

        Raises:
            DataError: a file cannot be read.
        """
        return sum(map(len, self.blocks()))

    def blocks(self) -> Iterator[bytes]:
        """The text in blocks, a line break between two files.

        Raises:
            DataError: a file cannot be read.
        """
        for _, block in self._named_blocks():
            yield block

    def texts(self) -> Iterator[str]:
        """The text in blocks of characters, which are never cut.

        Raises:
            DataError: a file cannot be read, or is not UTF-8.
        """
        decoder, name, position = codecs.getincrementaldecoder("utf-8")(), self.name, 0
        for next_name, block in self._named_blocks():
            if next_name != name:
                _decoded(decoder, b"", name, position, final=True)
                decoder.reset()
                name, position = next_name, 0
            yield _decoded(decoder, block, name, position)
            position += len(block)
        _decoded(decoder, b"", name, position, final=True)

    def _named_blocks(self) -> Iterator[tuple[str, bytes]]:
        if not self.files:
            yield self.name, built_in().encode()
        for number, path in enumerate(self.files):
            try:
                with path.open("rb") as file:
                    while block := file.read(BLOCK_BYTES):
                        yield str(path), block
            except OSError as error:
                raise DataError(Problem(str(path), f"unreadable ({error.strerror})", "give a text file")) from error
            if number + 1 < len(self.files):
                yield f"{path} and the next file", _BETWEEN_FILES


def source(word: str | None) -> Source:
    """The text that `source=` names: a file, all files below a folder in the order of their paths, or Python's own.

    Hidden files and folders are left out.

    Raises:
        DataError: there is nothing.
    """
    if word is None:
        return Source(BUILT_IN, ())
    path = Path(word)
    if path.is_file():
        return Source(word, (path,))
    if not path.is_dir():
        raise DataError(Problem("source", f"{word} does not exist", "give a text file or a folder of them"))
    inside = (each.relative_to(path) for each in path.rglob("*") if each.is_file())
    files = sorted(each for each in inside if not any(part.startswith(".") for part in each.parts))
    if not files:
        raise DataError(Problem("source", f"{word} holds no file", "give a text file or a folder of them"))
    return Source(f"{len(files)} files in {word}", tuple(path / each for each in files))


def _decoded(decoder: codecs.IncrementalDecoder, block: bytes, name: str, position: int, final: bool = False) -> str:
    pending = len(decoder.getstate()[0])  # bytes of a character that the block before began
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        given = f"byte {position - pending + error.start} is no UTF-8"
        remedy = "convert it (iconv -f latin1 -t utf-8 OLD > NEW), or use tokenizer=bytes"
        raise DataError(Problem(name, given, remedy)) from error
