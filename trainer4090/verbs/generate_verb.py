"""`generate`: a text that a trained language model goes on with, shown as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from trainer4090 import tokenizer, trained
from trainer4090.data.pipeline.token_files import read_manifest
from trainer4090.disk import write_text
from trainer4090.errors import ConfigError, Problem, RunFolderError
from trainer4090.failure import exhaustion
from trainer4090.item_format import TokenFormat
from trainer4090.preparation import bpe
from trainer4090.schema import Count, NonNegativeFloat, PositiveFloat, PositiveInt, Range
from trainer4090.signals import ending
from trainer4090.spec import DeviceWord
from trainer4090.trained import Trained
from trainer4090.verbs.options import read_options, to_stderr

_START = "\n"
"""What a text without a prompt comes after, where the vocabulary has it."""


@dataclass(frozen=True)
class Options:
    """What may follow the verb."""

    run: str = "latest"
    checkpoint: str = "best"
    prompt: str = ""
    tokens: PositiveInt = 200
    temperature: NonNegativeFloat = 0.8
    top_k: PositiveInt | None = None
    top_p: Annotated[float, Range(low=0, high=1, above_low=True)] | None = None
    seed: Count = 0
    out: str | None = None
    tokenizer: str | None = None
    device: DeviceWord = "auto"
    memory_cap_gib: PositiveFloat | None = None


def run(words: Sequence[str]) -> int:
    """Print the prompt and `tokens=` more tokens; written to `out=` too.

    Raises:
        TrainerError: there is no such run, it is no language model, or a signal came.
    """
    options = read_options(words, Options)
    out = None if options.out is None else _new_file(Path(options.out))
    file = trained.find(options.run, options.checkpoint, to_stderr)
    stopped = ending("stopped", "what was generated stands above")
    with stopped, exhaustion(options.memory_cap_gib, "use device=cpu"):
        model = trained.load(file, options.device, options.memory_cap_gib, to_stderr)
        token_format = _format(options, model, file)
        prompt = _prompt(options.prompt, token_format)
        to_stderr(f"{file} (update {model.step}) on {model.device}")
        pieces: list[str] = []
        try:
            for piece in _pieces(options, model, token_format, prompt):
                pieces.append(piece)
                _show(piece)
        finally:
            _show("\n")
    if out is not None:
        write_text(out, "".join(pieces))
    return 0


def _pieces(options: Options, model: Trained, token_format: TokenFormat, prompt: Sequence[int]) -> Iterator[str]:
    """Prompt and continuation as text, each piece as soon as its characters are complete."""
    from trainer4090.generation import Sampling, continuation

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    vocab_size = min(model.data.num_classes, tokenizer.vocab_size(token_format))
    context = model.data.item_shape[0]
    new = continuation(model.model, prompt, context, vocab_size, sampling, model.device)
    decoder = tokenizer.decoder(token_format)
    start = "".join(map(decoder.feed, prompt))
    if options.prompt:
        yield start
    yield from map(decoder.feed, islice(new, options.tokens))
    yield decoder.flush()


def _format(options: Options, model: Trained, file: Path) -> TokenFormat:
    """From text to the model's tokens, out of the file or from `tokenizer=`.

    Raises:
        ConfigError: the model takes no text, or the file does not say how.
    """
    if model.data.kind != "tokens":
        given = f"{file} is model={model.spec.model.name}, trained on {model.data.kind}"
        raise ConfigError(Problem("checkpoint", given, "give a run of a language model: gpt, char_lstm"))
    if options.tokenizer is not None:
        path = Path(options.tokenizer)
        manifest = read_manifest(path) if path.name == "tokens.json" else None
        return TokenFormat("bpe", bpe.from_file(path)) if manifest is None else manifest.format
    if isinstance(model.format, TokenFormat):
        return model.format
    given = f"{file} does not say which tokenizer its training data had"
    raise ConfigError(Problem("tokenizer", given, "give tokenizer=PATH of a tokenizer.json, or of a tokens.json"))


def _prompt(text: str, token_format: TokenFormat) -> list[int]:
    """Tokens of the prompt; without one, of a line break or of the vocabulary's first character.

    Raises:
        ConfigError: a character is not in the vocabulary.
    """
    if not text:
        listed = token_format.tokenizer == "characters" and _START not in token_format.vocabulary
        text = token_format.vocabulary[0] if listed else _START
    return tokenizer.encode(text, token_format, "prompt").tolist()


def _new_file(path: Path) -> Path:
    """`path` itself, where a new file can be.

    Raises:
        RunFolderError: there is a file already, or no folder for it.
    """
    if path.exists():
        raise RunFolderError(Problem("out", f"{path} exists", "give the path of a new file"))
    if not path.parent.is_dir():
        raise RunFolderError(Problem("out", f"{path.parent} is no folder", "make it first, or give another path"))
    return path


def _show(text: str) -> None:
    # A terminal of a narrower encoding shows a mark where it lacks a character.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
