"""Timings of earlier runs in the user's cache folder: one file for each question that was answered."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer4090 import __version__, timings
from trainer4090.ablation.record import FINAL
from trainer4090.ablation.rows import to_measure
from trainer4090.device import Choice
from trainer4090.disk import write_text
from trainer4090.errors import RunFolderError
from trainer4090.spec import RunSpec, to_tree
from trainer4090.timings import Timing, Value

Notify = Callable[[str], None]

VARIABLE = "TRAINER4090_CACHE"
"""Environment variable with the folder to use instead of the user's own."""
DECIDING = {
    "train": ("batch_size", "micro_batch", "clip_norm", "deterministic"),
    "ablate": ("warm_up", "steps", "seconds", "repeats", "timeout_s"),
    "ema": None,
    "plugin": None,
    "precision": None,
    "memory": None,
    "kernels": None,
    "parallelism": None,
    "model": None,
    "data": None,
    "loss": None,
    "optimizer": None,
}
"""Sections of a spec that a speed depends on, and which of their keys; None: all."""
INDIFFERENT = ("model.weights", "optimizer.lr", "optimizer.weight_decay")
"""Keys of these that change numbers and not the work done with them."""


def folder() -> Path:
    """Where timings are kept; need not exist."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen) / "timings"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "trainer4090" / "timings"


def file_of(spec: RunSpec, key: str, values: Sequence[Value], chosen: Choice) -> Path:
    """The file of one question: which of `values` of `key` is fastest for `spec` on a device, with this code."""
    question = {
        "device": [chosen.card.device_name, chosen.uuid or _processor()],
        "versions": [__version__, importlib.metadata.version("torch")],
        "key": key,
        "values": list(values),
        "spec": _deciding(to_tree(to_measure(spec)) | {"ablate": dataclasses.asdict(spec.ablate)}),
    }
    return folder() / f"{hashlib.sha256(json.dumps(question).encode()).hexdigest()[:32]}.json"


def load(path: Path, key: str, notify: Notify) -> Timing | None:
    """The timing in a file, None when there is none; a damaged file is told of, and is as good as none."""
    if not path.is_file():
        return None
    try:
        (found,) = timings.of_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        notify(f"{key}: {path} cannot be read ({error}), so it is measured anew")
        return None
    return dataclasses.replace(found, origin="cache")


def save(path: Path, timing: Timing, notify: Notify) -> None:
    """Keep a timing, unless a candidate ended in a way that may be another next time; a full disk is told of."""
    if any(each.status != "ok" and each.status not in FINAL for each in timing.candidates):
        notify(f"{timing.key}: not cached, because a process failed in a way that need not come again")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, timings.as_text([timing]))
    except (OSError, RunFolderError) as error:
        notify(f"{timing.key}: not cached ({error}); {VARIABLE} names another folder")


def _deciding(tree: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for section, names in DECIDING.items():
        value = tree[section]
        if isinstance(value, dict):
            kept = value if names is None else {name: value[name] for name in names}
            value = {name: each for name, each in kept.items() if f"{section}.{name}" not in INDIFFERENT}
        found[section] = value
    return found


def _processor() -> list[Any]:
    """What tells one CPU from another: its name, and how many of its cores this process may use."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return [*names[:1], len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")]
