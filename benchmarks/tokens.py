"""Tokens a second that one core reads from files through our loader, and whether its memory grows.

    python -m benchmarks.tokens

writes 1 GiB of uint16 tokens, reads batches of several shapes in random order through the training loader in one
thread, and ends with exit 1 when a shape stays below 5 million tokens a second, or the memory of the process grows by
more than 64 MiB while two thirds of the file are read. Then it does the same with a mapping that is kept open, which
has to fail on memory: a benchmark that cannot fail measures nothing.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from trainer4090.data import tokens
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.data.pipeline.token_files import TokenFile
from trainer4090.data.tokens import Config

LEAST_TOKENS_PER_S = 5e6
MOST_GROWTH_MIB = 64
FILE_TOKENS = 2**29
SHAPES = ((512, 128), (32, 1024), (12, 1024), (8, 4096))
"""Samples a batch, tokens a sample."""
TIMED_S = 3.0
NUM_TOUCHED = 2**29 // 3 * 2


def write(folder: Path) -> None:
    """Both files, of random tokens below 50,257, a MiB repeated with another beginning each time."""
    block = np.random.default_rng(0).integers(0, 50257, 2**19, dtype=np.uint16)
    with (folder / "train.bin").open("wb") as file:
        for number in range(FILE_TOKENS // len(block)):
            np.roll(block, number).tofile(file)
    block.tofile(folder / "val.bin")


def rss_mib() -> float:
    """Resident memory of this process, mapped files included."""
    gc.collect()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def batches(folder: Path, batch_size: int, length: int) -> Iterator[int]:
    """Tokens of each batch, as the loop counts them."""
    source = tokens.tokens(Config(path=str(folder), length=length), 0).train
    made = training_batches(source, torch.Tensor.numel, batch_size, 0, Position(0, 0), 0, False)
    return (batch.num_targets for batch, _ in made)


def rate(folder: Path, batch_size: int, length: int) -> float:
    """Tokens a second, after a warm-up."""
    counts = batches(folder, batch_size, length)
    list(islice(counts, 50))
    start, total = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < TIMED_S:
        total += next(counts)
    return total / elapsed


def growth_mib(folder: Path) -> float:
    """MiB that the process grows by while two thirds of the file are read."""
    counts = batches(folder, 32, 1024)
    list(islice(counts, 50))
    before, total = rss_mib(), 0
    while total < NUM_TOUCHED:
        total += next(counts)
    return rss_mib() - before


def main() -> int:
    """Print the table; 0 when every shape is fast enough, in constant memory."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        start = time.perf_counter()
        tokens.load(Config(path=name))
        print(f"check of {FILE_TOKENS:,} tokens at the start: {time.perf_counter() - start:.2f} s")
        rates = [rate(folder, *shape) for shape in SHAPES]
        for (batch_size, length), reached in zip(SHAPES, rates, strict=True):
            print(f"{batch_size:4} sequences of {length:4}: {reached / 1e6:6.1f} million tokens/s on one core")
        honest = growth_mib(folder)
        print(f"memory: {honest:.1f} MiB more after {NUM_TOUCHED:,} tokens (limit {MOST_GROWTH_MIB})")
        kept = TokenFile(folder / "train.bin", "uint16", FILE_TOKENS).mapped()
        with patch.object(TokenFile, "mapped", lambda file: kept):
            leaking = growth_mib(folder)
        print(f"with a mapping that is kept open: {leaking:.1f} MiB more (has to exceed the limit)")
    return 0 if min(rates) >= LEAST_TOKENS_PER_S and honest <= MOST_GROWTH_MIB < leaking else 1


if __name__ == "__main__":
    sys.exit(main())
