"""Real trainings for tests: in this process, or in processes that may be killed, and what they left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from conftest import python_path
from PIL import Image

from trainer4090 import checkpoint_file
from trainer4090.__main__ import main
from trainer4090.executors.local import LocalExecutor
from trainer4090.log_point import LogPoints

COMMON = (
    "device=cpu",
    "run.dir=run",
    "train.epochs=null",
    "train.steps=40",
    "train.log_every=5",
    "train.eval_every=12",
)
WORKERS = "data.num_workers=2"
CNN = (*COMMON, "model=cnn", "model.width=4")
MLP_AMP = (
    *(*COMMON, "model=mlp", "model.hidden=[16]", "model.dropout=0.2", "optimizer=adamw", "ema.decay=0.9"),
    *("precision=amp", "precision.initial_scale=16384", "precision.growth_interval=9", "optimizer.lr=0.01"),
)
GPT = (
    *(*COMMON, "model=gpt_tiny", "model.num_layers=1", "model.width=16", "model.num_heads=2", "model.dropout=0.1"),
    *("data=text", "data.path=text.txt", "data.length=16", "train.batch_size=8", "train.micro_batch=4"),
)
TOKENS = (*(word for word in GPT if not word.startswith("data")), "data=tokens", "data.path=tokens", "data.length=16")
IMAGES = (*CNN, "data=image_folder", "data.path=photos", "data.size=8", "train.batch_size=8")
VARIANTS = {"cnn": CNN, "mlp-amp-ema": MLP_AMP, "gpt": GPT, "tokens": TOKENS, "images": IMAGES}
"""Dropout in all, augmentation in cnn, more than one epoch in all, every piece of state in at least one."""
SPEED = ("speed/", "memory/", "gpu/")


def shown(value: object) -> str:
    """Id of a test's parameter: words as they are typed."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def new_folder(path: Path) -> Path:
    """A working directory that holds what the words of `VARIANTS` need."""
    path.mkdir(parents=True)
    letters = [chr(97 + number * number % 26) for number in range(3000)]
    (path / "text.txt").write_text("".join(letters), encoding="utf-8")
    (path / "tokens").mkdir()
    for name, part in (("train.bin", letters[:2700]), ("val.bin", letters[2700:])):
        np.array([ord(letter) - 97 for letter in part], dtype="<u2").tofile(path / "tokens" / name)
    for number in range(60):
        photo = path / "photos" / f"class {number % 3}" / f"{number}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (10 + number % 5, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photo)
    return path


@contextmanager
def signalled(*at_updates: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """Let this process get a signal inside the updates that are counted here from 1."""
    step, count = LocalExecutor.step, 0

    def counting(self: LocalExecutor, batch: Any, observe: bool) -> Any:
        nonlocal count
        count += 1
        for _ in range(at_updates.count(count)):
            signal.raise_signal(number)
        return step(self, batch, observe)

    LocalExecutor.step = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalExecutor.step = step  # type: ignore[method-assign]


@contextmanager
def signalled_after(num_points: int) -> Iterator[None]:
    """Let this process get a SIGTERM inside the update that `LogPoints.count` counts as the last of `num_points`."""
    count, calls = LogPoints.count, 0

    def counting(self: LogPoints, num_items: int, waited_s: float) -> None:
        nonlocal calls
        calls += 1
        if calls == num_points:
            signal.raise_signal(signal.SIGTERM)
        count(self, num_items, waited_s)

    LogPoints.count = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        LogPoints.count = count  # type: ignore[method-assign]


def train(folder: Path, *words: str) -> int:
    """Exit code of a training in this process; signal handlers are as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    here = Path.cwd()
    os.chdir(folder)
    try:
        return main(words)
    finally:
        os.chdir(here)
        for number, handler in before.items():
            signal.signal(number, handler)


def start(folder: Path, words: Sequence[str], prepare: Callable[[], None] | None = None) -> ForkServerProcess:
    """A started process that trains in `folder` after `prepare`; its output goes to `output.txt` there.

    It is forked from a process that has imported torch, which spares a second and a half each.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer4090.loop", "trainer4090.build", "trainer4090.composition"])
    process = context.Process(target=_child, args=(folder, tuple(words), prepare))
    with patch.dict(os.environ, PYTHONPATH=python_path()):
        process.start()
    return process


def environment() -> dict[str, str]:
    """Variables of a process that is started as a user would."""
    return {**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def run(folder: Path, words: Sequence[str], prepare: Callable[[], None] | None = None, timeout_s: float = 60) -> int:
    """Exit code of a training in a process of its own; negative for the signal that killed it."""
    process = start(folder, words, prepare)
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"still running after {timeout_s} s: {output(folder)}")
    return process.exitcode


def output(folder: Path) -> str:
    """Stdout and stderr of the newest process in `folder`."""
    return (folder / "output.txt").read_text(encoding="utf-8")


def _child(folder: Path, words: tuple[str, ...], prepare: Callable[[], None] | None) -> None:
    os.chdir(folder)
    file = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    sys.exit(main(words))


def result(folder: Path) -> dict[str, Any]:
    """Content of `result.json`."""
    return json.loads((folder / "run/result.json").read_text(encoding="utf-8"))


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Lines of `metrics.jsonl` without what depends on the clock."""
    lines = (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{tag: value for tag, value in json.loads(line).items() if not tag.startswith(SPEED)} for line in lines]


def state(folder: Path) -> dict[str, Any]:
    """The newest saved state, as a user's own script would read it; the description of the run is left out."""
    saved = torch.load(checkpoint_file.files(folder / "run")[0])
    return {name: value for name, value in saved.items() if name != "spec"}


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that two equal trainings must have in common."""
    pointers = {name: json.loads((folder / f"run/checkpoints/{name}.json").read_text()) for name in ("last", "best")}
    names = sorted(path.name for path in checkpoint_file.files(folder / "run"))
    final = {key: result(folder)[key] for key in ("status", "steps", "eval")}
    return {"state": state(folder), "metrics": metrics(folder), "files": names, "result": final, **pointers}


def differences(left: Any, right: Any, name: str = "") -> list[str]:
    """Names of the leaves in which two trees of tensors and plain values differ, bit for bit."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = list(dict.fromkeys([*left, *right]))
        return [text for key in keys for text in differences(left.get(key), right.get(key), f"{name}.{key}")]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return [text for index, (one, other) in pairs for text in differences(one, other, f"{name}[{index}]")]
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return [] if torch.equal(left, right) and left.dtype == right.dtype else [name]
    return [] if type(left) is type(right) and left == right else [name]
