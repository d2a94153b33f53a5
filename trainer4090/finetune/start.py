"""Where training starts: what `model.weights` names. Imports torch inside functions only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainer4090.errors import ConfigError, Problem
from trainer4090.finetune import weights_file
from trainer4090.records import Model
from trainer4090.spec import PUBLISHERS


def require_start(word: str) -> None:
    """Raise unless what `word` names can be looked for: a path must exist.

    Raises:
        CheckpointFileError: nothing is there.
    """
    if _publisher(word) is None:
        weights_file.require(Path(word))


def settled(word: str) -> str:
    """The override with links in `model.weights` followed: `outputs/latest` leads elsewhere once this run begins."""
    key, _, value = word.partition("=")
    return f"{key}={','.join(map(_followed, value.split(',')))}" if key == "model.weights" else word


def _followed(path: str) -> str:
    linked = os.path.exists(path) and os.path.realpath(path) != os.path.abspath(path)
    return os.path.relpath(os.path.realpath(path)) if linked else path


def start_from(word: str, model: Model, num_outputs: int, notice: Callable[[str], None]) -> None:
    """Put the weights that `word` names (a file, a run folder, `torchvision`) into the module of `model`.

    Raises:
        ConfigError: they are of another model, or the model has no published ones.
        CheckpointFileError: the file is missing, damaged, or holds no weights.
        MachineError: a package is missing, or the download failed.
    """
    from trainer4090.finetune.fit import load_into

    publisher = _publisher(word)
    if publisher is None:
        tensors, source = weights_file.read(Path(word), notice), word
    elif model.published is None:
        raise ConfigError(Problem("model.weights", f"{word}, but this model has none published", "give a file"))
    else:
        tensors, source = model.published(word.partition(":")[2], notice), word
    load_into(model, tensors, source, num_outputs, notice)


def _publisher(word: str) -> str | None:
    name = word.partition(":")[0]
    return name if name in PUBLISHERS else None
