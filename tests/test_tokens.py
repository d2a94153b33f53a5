"""`data=tokens`: the same windows as `data=text`, whatever wrote the files, and every wrong file is named."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import python_path, run_of, train_updates

from trainer4090.__main__ import main
from trainer4090.data import DATA, Source, text, tokens
from trainer4090.data.pipeline import resident, token_files
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.data.pipeline.mapped import MappedWindowSource
from trainer4090.errors import DataError
from trainer4090.loop import evaluate

GPT = ("model=gpt_tiny", "model.num_layers=1", "model.width=16", "model.num_heads=2", "data.length=16")
SHORT = ("train.epochs=null", "train.steps=30", "train.batch_size=8", "device=cpu")


def written(folder: Path, train: Any, val: Any, dtype: str = "<u2") -> Path:
    """A folder of nanoGPT's layout."""
    folder.mkdir()
    np.array(train).astype(dtype).tofile(folder / "train.bin")
    np.array(val).astype(dtype).tofile(folder / "val.bin")
    return folder


def prepared(tmp_path: Path, *words: str) -> Path:
    """A text of 1,500 characters, and its tokens in `tokens`."""
    letters = "".join(chr(97 + number * number % 26) for number in range(1499)) + "é"
    (tmp_path / "text.txt").write_text(letters, encoding="utf-8")
    assert main(["data", "prepare", "source=text.txt", "out=tokens", *words]) == 0
    return tmp_path / "tokens"


def every(source: Source, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return source.fetch(torch.arange(len(source)), epoch)


def built(config: tokens.Config, seed: int = 0) -> Any:
    return DATA.get("tokens").build(config, seed)


def test_windows_are_those_of_the_text(tmp_path: Path) -> None:
    prepared(tmp_path)
    ours = built(tokens.Config(path="tokens", length=16), seed=3)
    theirs = DATA.get("text").build(text.Config(path="text.txt", length=16), 3)
    assert ours.format == theirs.format
    for epoch in (-1, 0, 1, 2, 7):
        for one, other in ((ours.train, theirs.train), (ours.evaluation, theirs.evaluation)):
            for mine, reference in zip(every(one, epoch), every(other, epoch), strict=True):
                assert torch.equal(mine, reference) and mine.dtype == reference.dtype
            some = torch.tensor([1, 0, 1])
            assert torch.equal(one.targets(some, epoch), other.targets(some, epoch))


@pytest.mark.parametrize("model", [GPT, ("model=char_lstm", "model.width=8", "data.length=16")], ids=["gpt", "lstm"])
def test_losses_are_those_of_the_text(tmp_path: Path, model: tuple[str, ...]) -> None:
    """More than one epoch, so that offsets differ."""
    prepared(tmp_path)
    data = (("data=text", "data.path=text.txt"), ("data=tokens", "data.path=tokens"))
    ran = [run_of(*words, *model, *SHORT) for words in data]
    first, second = (train_updates(run, 30) for run in ran)
    assert first == second
    assert evaluate(ran[0]) == evaluate(ran[1])


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_files_of_nanogpt(tmp_path: Path, dtype: str) -> None:
    """Without `tokens.json`: uint16 unless said otherwise, and as many outputs as the largest token needs."""
    train = np.arange(1000) % 300 + 50
    written(tmp_path / "shakespeare", train, [3, 700] * 20, dtype)
    word = {"<u2": "auto", "<u4": "uint32"}[dtype]
    config = tokens.Config(path="shakespeare", length=10, dtype=word)  # type: ignore[arg-type]
    traits = tokens.traits(config)
    assert (traits.num_classes, traits.num_train, traits.num_evaluation) == (701, 99, 3)
    assert built(config).format is None
    inputs, targets = every(built(config).train, -1)
    assert inputs.flatten().tolist() == train[:990].tolist()
    assert targets.flatten().tolist() == train[1:991].tolist()


def test_a_given_vocabulary_wins(tmp_path: Path) -> None:
    written(tmp_path / "mine", range(100), range(100))
    assert tokens.traits(tokens.Config(path="mine", length=10, vocab_size=50304)).num_classes == 50304


def test_a_worker_gets_the_path_alone(tmp_path: Path) -> None:
    written(tmp_path / "mine", np.arange(60000) % 500, range(100))
    source = built(tokens.Config(path="mine", length=10)).train
    sent = pickle.dumps(source)
    assert len(sent) < 1000
    assert torch.equal(every(pickle.loads(sent), 1)[0], every(source, 1)[0])
    assert source.file.path.is_absolute()


def test_small_files_can_lie_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "mine", range(500), range(100))
    source, meta = built(tokens.Config(path="mine", length=10)).train, torch.device("meta")
    assert isinstance(source.resident(meta), resident.Resident)
    assert source.resident(torch.device("cpu")) is source
    monkeypatch.setattr(resident, "LIMIT_MIB", 0)
    assert source.resident(meta) is source


def test_resident_windows_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "mine", np.arange(500) * 131, range(100))
    source: MappedWindowSource = built(tokens.Config(path="mine", length=10)).train
    monkeypatch.setattr("trainer4090.data.pipeline.mapped.fits", lambda device, tensor: True)
    placed = source.resident(torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(every(placed, 4), every(source, 4), strict=True))


def test_the_scan_sees_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "_SCAN_TOKENS", 7)
    for place in (0, 6, 7, 99):
        values = [1] * 100
        values[place] = 40
        written(tmp_path / str(place), values, [1] * 20)
        with pytest.raises(DataError, match=rf"token 40 at position {place} is outside a vocabulary of 40; .*=41"):
            tokens.traits(tokens.Config(path=str(place), length=10, vocab_size=40))


GOOD = list(range(40))


def damaged_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "tokens.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...], int, str]] = {
    "no folder": (lambda here: None, (), 3, "mine/train.bin: no such file"),
    "no val": (lambda here: (written(here, GOOD, GOOD) / "val.bin").unlink(), (), 3, "mine/val.bin: no such file"),
    "empty": (lambda here: written(here, [], GOOD), (), 3, "train.bin: 0 tokens; data.length + 1 = 17"),
    "short": (lambda here: written(here, GOOD, GOOD[:16]), (), 3, "val.bin: 16 tokens; data.length + 1 = 17"),
    "odd": (lambda here: (written(here, GOOD, GOOD) / "train.bin").write_bytes(b"x" * 81), (), 3, "81 bytes are no"),
    "outside": (
        lambda here: written(here, GOOD, [*GOOD, 77]),
        ("data.vocab_size=77",),
        3,
        "val.bin: token 77 at position 40 is outside a vocabulary of 77; give data.vocab_size=78",
    ),
    "uint32 as uint16": (lambda here: written(here, GOOD, GOOD, "<u4"), (), 3, "give data.dtype=uint32"),
    "uint16 as uint32": (
        lambda here: written(here, [65535] * 40, GOOD),
        ("data.dtype=uint32",),
        3,
        "no vocabulary is that large",
    ),
    "outputs": (lambda here: written(here, GOOD, GOOD), ("model.vocab_size=39",), 2, "at least 40"),
    "few": (lambda here: written(here, GOOD, GOOD), (), 3, "1 training samples are fewer than train.batch_size=8"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare, words, code, message = BAD[case]
    prepare(tmp_path / "mine")
    assert main(["data=tokens", "data.path=mine", *GPT, *SHORT, *words]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not Path("outputs").exists()


MANIFESTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...], int, str]] = {
    "no JSON": (lambda here: (here / "tokens.json").write_text("{"), (), 3, "tokens.json: unreadable"),
    "a list": (lambda here: (here / "tokens.json").write_text("[]"), (), 3, "is no section"),
    "another key": (lambda here: damaged_manifest(here, x=1), (), 3, "tokens.json.x: unknown key"),
    "another type": (lambda here: damaged_manifest(here, vocab_size="9"), (), 3, "tokens.json.vocab_size: '9'"),
    "fewer tokens": (lambda here: damaged_manifest(here, val_tokens=3), (), 3, "val.bin: 150 tokens, but tokens.json"),
    "small": (lambda here: damaged_manifest(here, vocab_size=9), (), 3, "is outside a vocabulary of 9"),
    "a type denied": (lambda here: None, ("data.dtype=uint32",), 2, "data.dtype: uint32; "),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_wrong_manifest_is_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, words, code, message = MANIFESTS[case]
    damage(prepared(tmp_path))
    assert main(["data=tokens", "data.path=tokens", *GPT, *SHORT, *words]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_file_that_vanishes_is_named(tmp_path: Path, num_workers: int) -> None:
    folder = written(tmp_path / "mine", range(5000), range(100))
    source = built(tokens.Config(path="mine", length=10)).train
    (folder / "train.bin").write_bytes(b"")
    batches = training_batches(source, torch.Tensor.numel, 8, 0, Position(0, 0), num_workers, False)
    with pytest.raises(DataError, match=r"train.bin: was changed while in use"):
        next(batches)


def test_an_ignored_token_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Targets were checked when the files were read, but how many of them the loss ignores was not."""
    written(tmp_path / "mine", np.arange(1500) % 40, np.arange(200) % 40)
    words = ("data=tokens", "data.path=mine", *GPT, *SHORT, "train.steps=2")
    assert main([*words, "loss.ignore_index=5"]) == 0
    assert "training targets are ignored by the loss" in capsys.readouterr().out


def test_checked_targets_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a file of 17 GB as int64 would take minutes."""
    written(tmp_path / "mine", range(500), range(100))
    monkeypatch.setattr(MappedWindowSource, "targets", lambda *_: pytest.fail("read again"))
    run_of("data=tokens", "data.path=mine", *GPT, *SHORT)


def test_planning_imports_no_torch(tmp_path: Path) -> None:
    written(tmp_path / "mine", range(500), range(150))
    code = "import sys; from trainer4090.data import tokens; tokens.traits(tokens.Config(path='mine')); "
    command = [sys.executable, "-c", f"{code}sys.exit('torch' in sys.modules)"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": python_path()})
