"""Images a second of our loader beside the bare decoding that it cannot beat, both in two processes.

    python -m benchmarks.loader

draws 600 JPEGs of 500x375 pixels (smooth colours, edges and noise, quality 90: about 50 KiB each, as photos have), and
reads them as held-out samples of 224 pixels in two ways, in turn:

- bare: a pool of two processes; each image is decoded, resized and turned into an array by Pillow, which is dropped
  there. Nothing travels, nothing is batched.
- ours: `training_batches` with two worker processes and batches of 64, up to the tensor that a model would get.

The median of our rate over the bare rate beside it has to be at least 0.9; then the same with 2 ms of sleep an image
put into our reading, which has to fall below: a benchmark that cannot fail measures nothing. Exit 1 otherwise.
Part of our rate is that torch resizes faster than Pillow. What batching and travelling cost is seen beside a third
contender, a pool that calls our own `decode` and drops the tensor; it is printed and not judged.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from trainer4090.data import DATA, Data, Source
from trainer4090.data.pipeline.decode import decode
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.item_format import ImageFormat

LIMIT = 0.9
NUM_PROCESSES = 2
NUM_IMAGES = 600
NUM_ROUNDS = 11
BATCH_SIZE = 64
WIDTH, HEIGHT, SIZE, SHORTER_SIDE = 500, 375, 224, 256
NUM_PASSES = 2
"""Over the images, in a round."""


def photo(seed: int) -> Image.Image:
    """An image that a JPEG coder works on as on a photo: smooth colours on three scales, edges and noise."""
    generator = np.random.default_rng(seed)
    pixels = np.full((HEIGHT, WIDTH, 3), 128, dtype=np.float32)
    for cells, amplitude in ((4, 70), (16, 35), (64, 18)):
        coarse = generator.normal(size=(cells * HEIGHT // WIDTH, cells, 3)).astype(np.float32)
        for channel in range(3):
            smooth = Image.fromarray(coarse[..., channel]).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            pixels[..., channel] += amplitude * np.asarray(smooth)
    pixels += 6 * generator.normal(size=(HEIGHT, WIDTH, 1))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(24):
        centre, radius = generator.integers(0, (WIDTH, HEIGHT)), int(generator.integers(6, WIDTH // 4))
        angles = np.sort(generator.uniform(0, 2 * np.pi, 5))
        corners = [
            (int(centre[0] + radius * np.cos(angle)), int(centre[1] + radius * np.sin(angle))) for angle in angles
        ]
        draw.polygon(corners, fill=tuple(generator.integers(0, 256, 3).tolist()))
    return image


def write_photos(folder: Path) -> list[str]:
    """Paths of `NUM_IMAGES` JPEGs in two class folders."""
    paths = []
    for number in range(NUM_IMAGES):
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        photo(number).save(path, quality=90)
        paths.append(str(path))
    return paths


def bare(path: str) -> int:
    """Decode one image, and resize and crop it, as one would write it down; the size of the array."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    side = SIZE * min(image.size) / SHORTER_SIDE
    left, upper = (image.width - side) / 2, (image.height - side) / 2
    box = (left, upper, left + side, upper + side)
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)).size


def pool_rate(read: Callable[[str], int], paths: list[str]) -> float:
    """Images a second of a pool that calls `read`, without its start."""
    with multiprocessing.get_context("forkserver").Pool(NUM_PROCESSES) as pool:
        pool.map(read, paths[:BATCH_SIZE])
        begin = time.perf_counter()
        for _ in range(NUM_PASSES):
            pool.map(read, paths, chunksize=16)
        return NUM_PASSES * len(paths) / (time.perf_counter() - begin)


def decoded(path: str, item_format: ImageFormat) -> int:
    """Decode one image with our own function; the size of the tensor."""
    return decode(path, item_format).numel()


@dataclass(frozen=True, eq=False)
class Slowed:
    """A source that sleeps for every image."""

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        time.sleep(0.002 * len(indices))
        return self.source.fetch(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        return self.source.targets(indices, epoch)

    def resident(self, device: torch.device) -> Source:
        return self


def our_rate(source: Source) -> float:
    """Images a second of our loader, from the first batch on."""
    batches = training_batches(source, torch.Tensor.numel, BATCH_SIZE, 0, Position(0, 0), NUM_PROCESSES, pin=False)
    with closing(batches):
        # What was read ahead by then is replaced by what is read ahead, and not counted, at the end.
        for _ in range(2 * NUM_PROCESSES):
            next(batches)
        number, begin = 0, time.perf_counter()
        while number < NUM_PASSES * len(source):
            batch, _ = next(batches)
            number += len(batch.targets)
        return number / (time.perf_counter() - begin)


def ratios(paths: list[str], data: Data, source: Source, report: Callable[[str], None]) -> tuple[float, float]:
    """Medians over rounds of our rate over the bare one, and over that of our own decoding, measured in turn."""
    over_bare, over_own = [], []
    assert isinstance(data.format, ImageFormat)
    own_decode = partial(decoded, item_format=data.format)
    for number in range(NUM_ROUNDS):
        ours, plain, own = our_rate(source), pool_rate(bare, paths), pool_rate(own_decode, paths)
        over_bare.append(ours / plain)
        over_own.append(ours / own)
        report(f"round {number + 1}: ours {ours:7.1f} images/s, bare {plain:7.1f}, our decoding alone {own:7.1f}")
    return statistics.median(over_bare), statistics.median(over_own)


def main() -> int:
    """Print the table; 0 when our rate is high enough and the slowed one is not."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        paths = write_photos(Path(name))
        entry = DATA.get("image_folder")
        data = entry.build(entry.config(path=name, val_fraction=0.01, augment=False, size=SIZE), 0)
        honest, own = ratios(paths, data, data.train, print)
        print(f"ours over bare: {honest:.3f} (limit {LIMIT}); over our decoding alone: {own:.3f}")
        slowed, _ = ratios(paths, data, Slowed(data.train), lambda line: None)
        print(f"with 2 ms of sleep an image: {slowed:.3f} (has to fall below the limit)")
    return 0 if slowed < LIMIT <= honest else 1


if __name__ == "__main__":
    sys.exit(main())
