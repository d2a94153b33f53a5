"""`data prepare`: the tokens are the text, the folder is whole or not there, and every wrong text is named."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import python_path

from trainer4090 import tokenizer
from trainer4090.__main__ import main
from trainer4090.data import text as text_data
from trainer4090.data.pipeline.token_files import narrowest, read_manifest
from trainer4090.item_format import TokenFormat
from trainer4090.preparation import bpe
from trainer4090.preparation import text as text_source
from trainer4090.verbs.data_prepare_verb import Progress

TEXT = "Der Fluß, die Straße\n\n  und 3 Bäume: 木木 😀!\n" * 40


def prepare(*words: str) -> int:
    return main(["data", "prepare", *words])


def tokens_of(folder: str, name: str) -> np.ndarray:
    return np.fromfile(Path(folder) / name, "<u2")


def format_of(folder: str) -> TokenFormat:
    manifest = read_manifest(Path(folder) / "tokens.json")
    assert manifest is not None
    return manifest.format


def decoded(token_format: TokenFormat, tokens: Any) -> str:
    decoder = tokenizer.decoder(token_format)
    return "".join([*map(decoder.feed, map(int, tokens)), decoder.flush()])


@pytest.fixture(autouse=True)
def _a_text(_own_folder: None) -> None:
    Path("mine.txt").write_text(TEXT, encoding="utf-8")


def test_characters_are_those_of_the_text_option() -> None:
    assert prepare("source=mine.txt", "out=made") == 0
    corpus = text_data.load(text_data.Config(path="mine.txt", length=16))
    assert format_of("made").vocabulary == corpus.vocabulary
    assert np.array_equal(tokens_of("made", "train.bin"), corpus.train)
    assert np.array_equal(tokens_of("made", "val.bin"), corpus.evaluation)


def test_without_a_source_it_is_the_text_of_python() -> None:
    assert prepare("out=made") == 0
    corpus = text_data.load(text_data.Config())
    assert np.array_equal(tokens_of("made", "val.bin"), corpus.evaluation)


@pytest.mark.parametrize("kind", ["characters", "bytes", "bpe"])
@pytest.mark.parametrize("block", [1, 3, 64, 2**20])
def test_tokens_are_the_text(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the blocks, which cut characters and lines."""
    monkeypatch.setattr(text_source, "BLOCK_BYTES", block)
    words = (f"tokenizer={kind}", *(("vocab_size=300",) if kind == "bpe" else ()))
    assert prepare("source=mine.txt", "out=made", "val_fraction=0.25", *words) == 0
    train, val = tokens_of("made", "train.bin"), tokens_of("made", "val.bin")
    num_val = int(len(TEXT.encode() if kind == "bytes" else TEXT) * 0.25)
    if kind == "bytes":
        assert bytes(np.concatenate((train, val)).astype(np.uint8)) == TEXT.encode() and len(val) == num_val
    else:
        assert decoded(format_of("made"), train) == TEXT[:-num_val]
        assert decoded(format_of("made"), val) == TEXT[-num_val:]
    manifest = read_manifest(Path("made/tokens.json"))
    assert manifest is not None and manifest.vocab_size == tokenizer.vocab_size(manifest.format) > max(train.max(), 1)


def test_files_of_a_folder_in_the_order_of_their_paths() -> None:
    for name, content in {"b.txt": "bb", "a/z.txt": "zz", "a/c.md": "cc", ".git/x": "no", "a/.hidden": "no"}.items():
        path = Path("texts") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert prepare("source=texts", "out=made", "tokenizer=bytes", "val_fraction=0.5") == 0
    content = bytes(np.concatenate([tokens_of("made", name) for name in ("train.bin", "val.bin")]).astype(np.uint8))
    assert content == b"cc\nzz\nbb"


def test_an_encoding_learns_from_the_training_part_alone() -> None:
    Path("two.txt").write_text("abab " * 400 + "zqzq " * 40)
    assert prepare("source=two.txt", "out=made", "tokenizer=bpe", "vocab_size=300") == 0
    vocabulary = json.loads(format_of("made").vocabulary)["model"]["vocab"]
    assert any("abab" in piece for piece in vocabulary) and not any("zq" in piece for piece in vocabulary)


def test_an_encoding_is_the_same_in_every_process() -> None:
    words = ("data", "prepare", "tokenizer=bpe", "vocab_size=1000")
    for out in ("one", "other"):
        command = [sys.executable, "-m", "trainer4090", *words, f"out={out}"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": python_path()}, capture_output=True)
    for name in ("train.bin", "val.bin", "tokens.json"):
        assert Path("one", name).read_bytes() == Path("other", name).read_bytes()


def test_an_encoding_of_a_file() -> None:
    assert prepare("source=mine.txt", "out=made", "tokenizer=bpe", "vocab_size=280") == 0
    Path("tokenizer.json").write_text(format_of("made").vocabulary, encoding="utf-8")
    assert prepare("source=mine.txt", "out=again", "tokenizer=tokenizer.json") == 0
    for name in ("train.bin", "val.bin", "tokens.json"):
        assert Path("made", name).read_bytes() == Path("again", name).read_bytes()


def test_cuts_do_not_change_an_encoding() -> None:
    """Encoding the pieces gives the tokens of the whole."""
    draw = random.Random(3)
    whole = "".join(draw.choice(["a", "b", " ", "\n", "\n", "\t", "é", "'s", "7", "."]) for _ in range(4000))
    token_format = TokenFormat("bpe", bpe.trained([whole], 400))
    blocks = [whole[start : start + 50] for start in range(0, len(whole), 50)]
    pieces = list(bpe.whole_lines(blocks))
    assert "".join(pieces) == whole and len(pieces) > 20
    encoded = np.concatenate([tokenizer.encode(piece, token_format) for piece in pieces])
    assert np.array_equal(encoded, tokenizer.encode(whole, token_format))


def test_types_are_as_narrow_as_the_vocabulary_allows() -> None:
    assert (narrowest(65536), narrowest(65537)) == ("uint16", "uint32")


NO_UTF8 = TEXT.encode() + b"caf\xe9 au lait " * 20
BAD: dict[str, tuple[bytes | None, tuple[str, ...], int, str]] = {
    "missing": (None, (), 3, "source: it.txt does not exist"),
    "empty": (b"", (), 3, "it.txt: empty; give a longer text"),
    "empty bytes": (b"", ("tokenizer=bytes",), 3, "it.txt: empty"),
    "short": (b"12345", (), 3, "5 characters, 0 of them held out"),
    "no UTF-8": (NO_UTF8, (), 3, f"byte {len(TEXT.encode()) + 3} is no UTF-8"),
    "cut short": ("ß".encode()[:1], (), 3, "byte 0 is no UTF-8"),
    "tokenizer": (
        b"12345",
        ("tokenizer=bpee",),
        2,
        "did you mean bpe? tokenizers: bpe, bytes, characters, or",
    ),
    "no tokenizer": (b"1" * 50, ("tokenizer=mine.txt",), 3, "mine.txt: no tokenizer.json"),
    "fraction": (b"12345", ("val_fraction=1",), 2, "above 0 and below 1"),
    "vocabulary": (b"12345", ("tokenizer=bpe", "vocab_size=255"), 2, "at least 256"),
    "vocabulary of characters": (b"12345", ("vocab_size=300",), 2, "it is for tokenizer=bpe"),
    "key": (b"12345", ("tokeniser=bytes",), 2, "did you mean tokenizer?"),
    "word": (b"12345", ("bytes",), 2, "type key=value: bytes=..."),
}


@pytest.mark.parametrize("block", [1, 2**20])
@pytest.mark.parametrize("case", BAD)
def test_refused(case: str, block: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_source, "BLOCK_BYTES", block)
    content, words, code, message = BAD[case]
    if content is not None:
        Path("it.txt").write_bytes(content)
    assert prepare("source=it.txt", "out=made", *words) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not Path("made").exists() and not list(Path().glob(".*"))


def test_out_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare("source=mine.txt") == 2
    assert "out: missing; give the folder to write" in capsys.readouterr().err


def test_a_folder_that_holds_something_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("made").mkdir()
    assert prepare("source=mine.txt", "out=made") == 0, "an empty folder is as good as none"
    before = {path.name: path.read_bytes() for path in Path("made").iterdir()}
    assert prepare("source=mine.txt", "out=made", "tokenizer=bytes") == 9
    assert "out: made is not empty" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in Path("made").iterdir()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress.show

    def stopping(self: Progress, what: str, count: int) -> None:
        shown(self, what, count)
        if what == "val.bin":
            signal.raise_signal(number)

    monkeypatch.setattr(Progress, "show", stopping)
    before = signal.getsignal(number)
    assert prepare("source=mine.txt", "out=made") == 128 + number
    assert "interrupted: " in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["mine.txt"]
    assert signal.getsignal(number) == before


def test_a_full_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert prepare("source=mine.txt", "out=made") == 9
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["mine.txt"]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert prepare("source=mine.txt", "out=made", "tokenizer=bpe") == 4
    assert "pip install 'trainer4090[tokenizers]'" in capsys.readouterr().err
    assert prepare("source=mine.txt", "out=made", "tokenizer=bytes") == 0
