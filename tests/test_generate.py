"""`generate`: what a checkpoint file alone says, drawn as asked, shown in whole characters."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from torch.nn import functional

from trainer4090 import checkpoint_file, generation, tokenizer, trained
from trainer4090.__main__ import main
from trainer4090.data import DATA
from trainer4090.generation import Sampling, continuation, drawn
from trainer4090.item_format import TokenFormat
from trainer4090.preparation import bpe
from trainer4090.records import Model

CPU = torch.device("cpu")
TEXT = "Im Fluß 3 Bäume: 木木 😀!\nund\n" * 60
TINY = ("device=cpu", "run.dir=run", "train.epochs=null", "train.steps=12", "train.batch_size=8", "data.length=16")
GPT = (*TINY, "model=gpt_tiny", "model.num_layers=1", "model.width=16", "model.num_heads=2")
KINDS = {
    "gpt": (*GPT, "data=text", "data.path=text.txt", "ema.decay=0.8"),
    "untied": (*GPT, "data=text", "data.path=text.txt", "model.tie=false", "ema.decay=0.8"),
    "char_lstm": (*TINY, "model=char_lstm", "model.width=16", "data=text", "data.path=text.txt"),
    "bytes": (*GPT, "data=tokens", "data.path=bytes"),
    "bpe": (*GPT, "data=tokens", "data.path=bpe", "model.vocab_size=512"),
    "images": ("device=cpu", "run.dir=run", "train.epochs=null", "train.steps=2", "model=mlp", "model.hidden=[8]"),
}


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Kind -> a checkpoint file of such a run, made once."""
    made: dict[str, Path] = {}

    def file(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            (folder / "text.txt").write_text(TEXT, encoding="utf-8")
            if kind in ("bytes", "bpe"):
                words = ("vocab_size=300",) if kind == "bpe" else ()
                assert (
                    runs.train(folder, "data", "prepare", "source=text.txt", f"out={kind}", f"tokenizer={kind}", *words)
                    == 0
                )
            assert runs.train(folder, *KINDS[kind]) == 0
            made[kind] = checkpoint_file.files(folder / "run")[0]
        return made[kind]

    return file


def generated(file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["generate", f"checkpoint={file}", "device=cpu", *words]) == 0
    return capsys.readouterr().out.removesuffix("\n")


@pytest.mark.parametrize("kind", ["gpt", "char_lstm", "bytes", "bpe"])
def test_continues_a_prompt(kind: str, file_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("prompt=Im Fluß ", "tokens=40")
    first = generated(file_of(kind), capsys, *words)
    assert first.startswith("Im Fluß ") and len(first) > len("Im Fluß ")
    assert first == generated(file_of(kind), capsys, *words)
    assert first != generated(file_of(kind), capsys, *words, "seed=1")
    if kind in ("gpt", "char_lstm"):
        assert len(first) == len("Im Fluß ") + 40
        assert set(first) <= set(TEXT)


def test_the_file_alone_is_enough(file_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run folder, no training data, no configuration."""
    expected = generated(file_of("gpt"), capsys, "prompt=und")
    for path in (file_of("gpt"), file_of("gpt").with_name(f"{file_of('gpt').name}.sha256")):
        shutil.copy(path, tmp_path)
    assert generated(Path(file_of("gpt").name), capsys, "prompt=und") == expected


def test_the_newest_run_is_the_default(file_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = file_of("gpt").parents[1]
    expected = generated(file_of("gpt"), capsys, "prompt=und")
    assert main(["generate", f"run={run}", "prompt=und", "checkpoint=last"]) == 0
    assert capsys.readouterr().out == f"{expected}\n"
    Path("outputs").mkdir()
    Path("outputs/latest").symlink_to(run)
    assert main(["generate", "prompt=und"]) == 0
    assert capsys.readouterr().out.startswith("und")


def test_an_empty_prompt_starts_somewhere(file_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(generated(file_of("gpt"), capsys, "tokens=30")) == 30
    assert tokenizer.encode("\n", TokenFormat("bytes", "")).tolist() == [10]


@pytest.mark.parametrize("kind", ["gpt", "untied", "char_lstm"])
def test_a_loaded_model_is_the_evaluated_one(kind: str, file_of: Any) -> None:
    """Averaged parameters included, of a tied head too: the held-out loss is that of the run."""
    model = trained.load(file_of(kind), "cpu", None, print)
    config = type(model.spec.data.config)(path=str(file_of(kind).parents[2] / "text.txt"), length=16)
    held_out = DATA.get("text").build(config, 0).evaluation
    inputs, targets = held_out.fetch(torch.arange(len(held_out)), -1)
    loss = functional.cross_entropy(model.model.module(inputs).flatten(0, 1), targets.flatten())
    result = json.loads((file_of(kind).parents[1] / "result.json").read_text())
    assert float(loss) == pytest.approx(result["eval"]["loss"], rel=1e-5)
    assert (model.step, model.device, model.data.num_train) == (12, CPU, 0)
    assert not model.model.module.training


def test_a_carried_state_is_the_whole_sequence(file_of: Any) -> None:
    model = trained.load(file_of("char_lstm"), "cpu", None, print).model
    tokens = torch.arange(20)[None] % 7
    state, logits = None, []
    assert model.step is not None
    for token in tokens[0]:
        after, state = model.step(token[None], state)
        logits.append(after)
    torch.testing.assert_close(torch.stack(logits, dim=1), model.module(tokens), rtol=1e-5, atol=1e-6)


class Recording(torch.nn.Module):
    """The next token is the last one plus one; it notes what it was given."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.seen: list[list[int]] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.append(tokens[0].tolist())
        return functional.one_hot((tokens + 1) % self.vocab_size, self.vocab_size).float() * 50


GREEDY = Sampling(0.0, None, None, 0)


def test_a_forward_sees_the_newest_tokens_alone() -> None:
    module = Recording(50)
    new = continuation(Model(module, ()), [1, 2, 3, 4, 5, 6], 4, 50, GREEDY, CPU)
    assert [next(new) for _ in range(3)] == [7, 8, 9]
    assert module.seen == [[3, 4, 5, 6], [4, 5, 6, 7], [5, 6, 7, 8]]


def test_tokens_that_fill_up_a_vocabulary_are_never_drawn() -> None:
    new = continuation(Model(Recording(50), ()), [8], 4, 10, Sampling(1.0, None, None, 0), CPU)
    drawn_tokens = [next(new) for _ in range(40)]
    assert drawn_tokens[0] == 9 and max(drawn_tokens) == 9


LOGITS = torch.tensor([1.0, 3.0, -2.0, 2.5, 0.0])


def draws(sampling: Sampling, number: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(sampling.seed)
    return [drawn(LOGITS, sampling, generator) for _ in range(number)]


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(1.0, 1, None, 3), Sampling(1.0, None, 1e-9, 3), Sampling(1e-30, None, None, 3)],
    ids=["temperature-0", "top_k-1", "small-top_p", "tiny-temperature"],
)
def test_the_most_likely_token(sampling: Sampling) -> None:
    assert draws(sampling, 50) == [1] * 50


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(1.0, None, None, 0), [0, 1, 2, 3, 4]),
        (Sampling(0.5, None, None, 0), [0, 1, 2, 3, 4]),
        (Sampling(2.0, 3, None, 0), [0, 1, 3]),
        (Sampling(1.0, 99, 1.0, 0), [0, 1, 2, 3, 4]),
        (Sampling(1.0, None, 0.6, 0), [1, 3]),
        (Sampling(1.0, 2, 0.1, 0), [1]),
    ],
)
def test_draws_follow_the_probabilities(sampling: Sampling, allowed: list[int]) -> None:
    expected = torch.zeros(5)
    expected[allowed] = (LOGITS[allowed] / sampling.temperature).softmax(0)
    found = torch.tensor(draws(sampling, 4000)).bincount(minlength=5) / 4000
    assert (found - expected).abs().max() < 0.03
    assert all(token in allowed for token in found.nonzero().flatten().tolist())


FORMATS = [TokenFormat("bytes", ""), TokenFormat("bpe", bpe.trained(["und im "] * 9, 270))]


@pytest.mark.parametrize("token_format", FORMATS, ids=["bytes", "bpe"])
def test_a_stream_is_the_text_in_whole_characters(token_format: TokenFormat) -> None:
    decoder = tokenizer.decoder(token_format)
    tokens = tokenizer.encode(TEXT, token_format).tolist()
    pieces = [decoder.feed(token) for token in tokens]
    assert "".join(pieces) == TEXT and decoder.flush() == ""
    assert any(piece == "" for piece in pieces), "a character of several tokens waits for its last one"
    for token in tokenizer.encode("木", token_format).tolist()[:1]:
        assert decoder.feed(token) == ""
    assert decoder.flush() == "\ufffd"


@pytest.mark.parametrize("token_format", FORMATS, ids=["bytes", "bpe"])
def test_what_is_no_utf8_is_marked(token_format: TokenFormat) -> None:
    """An untrained model writes anything: the stream says what decoding all of it at once says."""
    draw = random.Random(0)
    for _ in range(200):
        content = bytes(draw.choice(b"ab\xe6\x9c\xa8\xc3\x9f\xf0") for _ in range(20))
        expected = content.decode(errors="replace")
        if token_format.tokenizer == "bytes":
            tokens = list(content)
        else:
            alphabet = bpe.library("test").pre_tokenizers.ByteLevel.alphabet()
            assert len(alphabet) == 256
            vocabulary = json.loads(token_format.vocabulary)["model"]["vocab"]
            tokens = [vocabulary[character] for character in map(byte_character, content)]
        decoder = tokenizer.decoder(token_format)
        assert "".join([*map(decoder.feed, tokens), decoder.flush()]) == expected


def byte_character(byte: int) -> str:
    """GPT-2's printable character for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [value for value in range(256) if value not in printable]
    return chr(byte) if byte in printable else chr(256 + rest.index(byte))


REFUSED: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "unknown character": ("gpt", ("prompt=Zoo",), 2, "prompt: 'Z', 'o' are not in the vocabulary"),
    "images": ("images", ("prompt=a",), 2, "is model=mlp, trained on images; give a run of a language model"),
    "no tokens": ("gpt", ("tokens=0",), 2, "tokens: 0; allowed is an integer at least 1"),
    "top_p": ("gpt", ("top_p=0",), 2, "top_p: 0; allowed is a number above 0 and at most 1 or null"),
    "temperature": ("gpt", ("temperature=-1",), 2, "temperature: -1; allowed is a number at least 0"),
    "device": ("gpt", ("device=gpu",), 2, "allowed is auto, cpu, cuda or cuda:N"),
    "key": ("gpt", ("promt=a",), 2, "did you mean prompt?"),
    "out": ("gpt", ("out=there.txt",), 9, "out: there.txt exists"),
    "out of nowhere": ("gpt", ("out=no/where.txt",), 9, "out: no is no folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, file_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kind, words, code, message = REFUSED[case]
    file = file_of(kind)
    Path("there.txt").write_text("mine")
    capsys.readouterr()
    assert main(["generate", f"checkpoint={file}", *words]) == code
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out.strip()
    assert Path("there.txt").read_text() == "mine"


def test_exhausted_memory(file_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def exhausted(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(generation, "continuation", exhausted)
    assert main(["generate", f"checkpoint={file_of('gpt')}"]) == 6
    assert capsys.readouterr().err.splitlines()[-1] == "trainer4090: error: memory: exhausted; use device=cpu"


def test_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate"]) == 2
    assert "run: outputs/latest holds no run" in capsys.readouterr().err
    assert main(["generate", "checkpoint=nothing.pt"]) == 7


def test_a_damaged_file(file_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in file_of("gpt").parent.glob(f"{file_of('gpt').name}*"):
        shutil.copy(path, tmp_path)
    path = tmp_path / file_of("gpt").name
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["generate", f"checkpoint={path}"]) == 7
    assert "does not match its sha256" in capsys.readouterr().err


def test_a_tokenizer_from_outside(file_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of nanoGPT do not say how they were made."""
    folder = file_of("bpe").parents[2]
    (tmp_path / "nano").mkdir()
    for name in ("train.bin", "val.bin"):
        shutil.copy(folder / "bpe" / name, tmp_path / "nano")
    assert main([*GPT, "data=tokens", "data.path=nano"]) == 0
    capsys.readouterr()
    assert main(["generate", "run=run"]) == 2
    assert "give tokenizer=PATH of a tokenizer.json, or of a tokens.json" in capsys.readouterr().err
    manifest = folder / "bpe/tokens.json"
    Path("tokenizer.json").write_text(json.loads(manifest.read_text())["vocabulary"])
    for path in (manifest, Path("tokenizer.json")):
        assert main(["generate", "run=run", "prompt=Im ", f"tokenizer={path}"]) == 0
        assert capsys.readouterr().out.startswith("Im ")


def test_written_to_a_file_too(file_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = generated(file_of("bytes"), capsys, "prompt=Fluß", "out=it.txt")
    assert Path("it.txt").read_text(encoding="utf-8") == shown


def test_an_interruption_ends_cleanly(
    file_of: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, count = file_of("gpt"), 0

    def stopping(*arguments: Any) -> int:
        nonlocal count
        count += 1
        if count == 5:
            signal.raise_signal(signal.SIGINT)
        return drawn(*arguments)

    monkeypatch.setattr(generation, "drawn", stopping)
    capsys.readouterr()
    assert main(["generate", f"checkpoint={file}", "prompt=und", "out=it.txt"]) == 130
    printed = capsys.readouterr()
    assert len(printed.out) == len("und") + 4 + 1 and printed.out.endswith("\n")
    assert printed.err.splitlines()[-1].startswith("trainer4090: interrupted: SIGINT: stopped")
    assert not Path("it.txt").exists()


def test_characters_in_any_order() -> None:
    """A vocabulary that was not written by us need not be sorted."""
    token_format = TokenFormat("characters", "cab")
    assert tokenizer.encode("abcab", token_format).tolist() == [1, 2, 0, 1, 2]
    assert np.array_equal(tokenizer.encode("", token_format), np.zeros(0))
