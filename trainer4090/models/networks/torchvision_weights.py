"""Published weights of torchvision's models, from torch.hub's cache or a download, checked against their hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchvision import models

from trainer4090.errors import CheckpointFileError, ConfigError, MachineError, Problem

KEY = "model.weights"
HASH = re.compile(r"-([0-9a-f]{8,})\.")
"""The first digits of a file's sha256 stand in its name."""
RENAMED = re.compile(r"(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)")
"""DenseNet's files have names from before its modules lost their dots: `norm.1.weight` is `norm1.weight`."""
WITHOUT_TRANSFORM = ("googlenet", "inception_v3")
"""Their weights were trained by another framework: they expect images normalised in a way of their own."""


def torchvision_weights(arch: str, version: str, notice: Callable[[str], None]) -> dict[str, torch.Tensor]:
    """Tensors by name, on the CPU. `version`: a name like IMAGENET1K_V2, '' for torchvision's default.

    Raises:
        ConfigError: there is no such version.
        MachineError: the file is not in the cache and cannot be downloaded.
        CheckpointFileError: the file in the cache is not what its name says.
    """
    if arch in WITHOUT_TRANSFORM:
        given = f"those of {arch} expect images normalised as in another framework"
        raise ConfigError(Problem(KEY, given, "choose another arch"))
    known: Any = models.get_model_weights(arch)
    if version not in ("", *known.__members__):
        given = f"torchvision has no {version!r} for {arch}"
        raise ConfigError(Problem(KEY, given, f"versions: {', '.join(known.__members__)}"))
    chosen = known[version] if version else known.DEFAULT
    path = Path(torch.hub.get_dir()) / "checkpoints" / chosen.url.rpartition("/")[2]
    if not path.exists():
        _download(chosen.url, path, notice)
    tensors = _verified(path)
    normalisation = chosen.transforms()
    notice(f"{KEY}: {chosen} from {path}, trained on images / 255 with {_normalisation(normalisation)}")
    return {RENAMED.sub(_joined, name): tensor for name, tensor in tensors.items()}


def _joined(match: re.Match[str]) -> str:
    return match[1] + match[2]


def _normalisation(transforms: Any) -> str:
    return f"mean {list(transforms.mean)} and deviation {list(transforms.std)}"


def _download(url: str, path: Path, notice: Callable[[str], None]) -> None:
    notice(f"{KEY}: downloading {url} to {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), _digits(path.name), progress=False)
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash differs
        reason = str(error).replace(";", ",").replace("\n", " ")[:120]
        remedy = f"get {path.name} on another machine and put it in {path.parent}"
        raise MachineError(Problem(KEY, f"cannot download {path.name} ({reason})", remedy)) from error


def _digits(name: str) -> str | None:
    found = HASH.search(name)
    return found[1] if found else None


def _verified(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    digits = _digits(path.name)
    if digits is not None and not digest.startswith(digits):
        given = f"{path} is damaged: its sha256 begins with {digest[: len(digits)]}, not with {digits}"
        raise CheckpointFileError(Problem(KEY, given, "delete it, so that it is downloaded again"))
    return torch.load(path, map_location="cpu", weights_only=True)
