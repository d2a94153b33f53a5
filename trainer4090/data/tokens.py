"""Text as tokens in files, for language models: any size, since only what is read takes memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer4090.data import DATA, Data
from trainer4090.data.pipeline.token_files import (
    MAKE_ONE,
    MANIFEST,
    TRAIN,
    VALIDATION,
    Manifest,
    TokenFile,
    first_outside,
    largest_token,
    open_file,
    read_manifest,
)
from trainer4090.data.pipeline.windows import Windows, windows
from trainer4090.errors import ConfigError, DataError, Problem
from trainer4090.schema import Auto, Count, PositiveInt
from trainer4090.traits import DataTraits


@dataclass(frozen=True)
class Config:
    """Fields of `data=tokens`; `length` counts tokens a sample."""

    path: str | None = None
    length: PositiveInt = 128
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    vocab_size: Auto | PositiveInt = "auto"
    num_workers: Count = 0


@dataclass(frozen=True)
class TokenFolder:
    """Both files of a folder, checked."""

    train: TokenFile
    evaluation: TokenFile
    vocab_size: int
    manifest: Manifest | None

    def windows(self, length: int) -> Windows:
        """The samples of both files."""
        return windows(self.train.num_tokens, self.evaluation.num_tokens, length)


def traits(config: Config) -> DataTraits:
    """What the files hold; every token of them is looked at once a process."""
    folder = load(config)
    parts = folder.windows(config.length)
    return DataTraits(
        kind="tokens",
        item_shape=(config.length,),
        num_classes=folder.vocab_size,
        num_train=parts.num_train,
        num_evaluation=parts.num_evaluation,
        items_per_sample=config.length,
        in_memory=False,
        description=_described(config, folder),
        targets_checked=True,
    )


@DATA.register("tokens", Config, traits=traits)
def tokens(config: Config, seed: int) -> Data:
    """Token files (train.bin, val.bin) of `data prepare` or of nanoGPT, read in constant memory."""
    from trainer4090.data.pipeline.mapped import MappedWindowSource
    from trainer4090.data.pipeline.prepare import unchanged

    folder, length = load(config), config.length
    parts = folder.windows(length)
    return Data(
        train=MappedWindowSource(folder.train, length, parts.num_train, parts.num_offsets, seed),
        evaluation=MappedWindowSource(folder.evaluation, length, parts.num_evaluation, 1, seed),
        prepare=unchanged,
        format=None if folder.manifest is None else folder.manifest.format,
    )


def load(config: Config) -> TokenFolder:
    """The files of `data.path`, every token of which is below the vocabulary's size.

    Raises:
        ConfigError: no folder is given, or a type that its `tokens.json` denies.
        DataError: a file is missing, damaged, too short, or holds a token outside the vocabulary.
    """
    if config.path is None:
        given = "null"
        raise ConfigError(Problem("data.path", given, f"give a folder with {TRAIN} and {VALIDATION}; {MAKE_ONE}"))
    # Absolute, because worker processes start from a process that may have been started elsewhere.
    folder = Path(config.path).absolute()
    manifest = read_manifest(folder / MANIFEST)
    if manifest is not None and config.dtype not in ("auto", manifest.dtype):
        remedy = f"{folder / MANIFEST} says {manifest.dtype}: leave it auto"
        raise ConfigError(Problem("data.dtype", config.dtype, remedy))
    dtype = config.dtype if manifest is None else manifest.dtype
    counts = (None, None) if manifest is None else (manifest.train_tokens, manifest.val_tokens)
    train, evaluation = (
        open_file(folder / name, dtype, count, shortest=config.length + 1)
        for name, count in zip((TRAIN, VALIDATION), counts, strict=True)
    )
    return TokenFolder(train, evaluation, _vocab_size(config, manifest, (train, evaluation)), manifest)


def _vocab_size(config: Config, manifest: Manifest | None, files: tuple[TokenFile, ...]) -> int:
    """What was given, else what the manifest says, else the largest token + 1.

    Raises:
        DataError: a token is not below it.
    """
    needed = max(map(largest_token, files)) + 1
    vocab_size = config.vocab_size
    if vocab_size == "auto":
        vocab_size = needed if manifest is None else manifest.vocab_size
    for file in files:
        if largest_token(file) >= vocab_size:
            position, token = first_outside(file, vocab_size)
            given = f"token {token} at position {position:,} is outside a vocabulary of {vocab_size}"
            remedy = f"give data.vocab_size={needed} or more, or prepare the text again"
            raise DataError(Problem(str(file.path), given, remedy))
    return vocab_size


def _described(config: Config, folder: TokenFolder) -> str:
    count = folder.train.num_tokens + folder.evaluation.num_tokens
    made = (
        "without tokens.json" if folder.manifest is None else f"{folder.manifest.tokenizer} of {folder.manifest.source}"
    )
    return f"{count:,} tokens of {config.path}, {made}"
