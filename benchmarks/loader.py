"""Images a second of our loader beside bare decoding, all by two processes.

    python -m benchmarks.loader [rounds]

draws 600 JPEGs of 500x375 pixels (smooth colours, edges and noise, quality 90: about 50 KiB each, as photos have), and
reads them in turn, round by round:

- ours: `training_batches` with two worker processes and batches of 64, up to the tensor that a model would get:
  samples of 224 pixels as held-out ones, decoded, cropped, resized, batched and handed over;
- bare Pillow: a pool that decodes to RGB pixels and drops them. Nothing is cropped, resized, batched or handed over;
- bare torchvision: the same by `torchvision.io.decode_jpeg`, the fastest decoder among our dependencies;
- Pillow's samples: a pool that decodes, crops and resizes by Pillow, as one would write it down, and drops them;
- our samples: a pool that calls our own `decode` and drops them.

Each has a rate by the clock, and the CPU time an image of all processes that take part. While both cores are ours these
say the same; while others use the machine only the second says anything, and is what is judged.

Every measurement has processes of its own that inherit no memory: Pillow needs a fourth more in some processes than in
others, for as long as they live (0.66 or 0.85 ms on an AMD EPYC, without page faults; the difference is in memmove, so
most likely where its memory happens to lie), and processes that are forked from one have the same luck. So means over
rounds are compared, and the range of the rounds is printed beside them.

- over bare Pillow, which is what decoding means in Python without a further word: `LIMIT`;
- over our samples: reading ahead has to make up for batching and handing over: `OWN_LIMIT`.

The other ratios are printed. Then the same with 0.5 ms of computing an image put into our reading, which has to fall
below both: a benchmark that cannot fail measures nothing. Exit 1 otherwise.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from trainer4090.data import DATA, Data, Source
from trainer4090.data.pipeline.decode import decode
from trainer4090.data.pipeline.loader import Position, training_batches
from trainer4090.item_format import ImageFormat

LIMIT = 0.9
OWN_LIMIT = 0.95
NUM_PROCESSES = 2
NUM_IMAGES = 600
NUM_ROUNDS = 11
BATCH_SIZE = 64
WIDTH, HEIGHT, SIZE, SHORTER_SIDE = 500, 375, 224, 256
NUM_PASSES = 2
"""Over the images, in a round."""
WARM_UP_BATCHES = 24
"""Of our loader: until every worker has written into all of the memory that is used again."""
EXTRA_MS = 0.5


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


def by_pillow(path: str) -> int:
    """Decode one image to RGB with Pillow; its width."""
    with Image.open(path) as file:
        file.load()
        return file.width


def by_torchvision(path: str) -> int:
    """Decode one image to RGB with torchvision; its width."""
    pixels = decode_jpeg(read_file(path), ImageReadMode.RGB)
    assert isinstance(pixels, torch.Tensor)
    return pixels.shape[2]


def sample_by_pillow(path: str) -> int:
    """Decode one image, resize and crop it with Pillow; the size of the array."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    side = SIZE * min(image.size) / SHORTER_SIDE
    left, upper = (image.width - side) / 2, (image.height - side) / 2
    box = (left, upper, left + side, upper + side)
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)).size


def our_sample(path: str, item_format: ImageFormat) -> int:
    """Decode one image with our own function; the size of the tensor."""
    return decode(path, item_format).numel()


@dataclass(frozen=True)
class Rate:
    """Of reading, without its start."""

    images_per_s: float
    cpu_ms: float
    """An image, of all processes."""


def cpu_s() -> float:
    """CPU time so far of this process and of its children that are alive."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def rate_of(read: Callable[[], int]) -> Rate:
    """The rate of `read`, which returns the number of images that it has read."""
    begin, cpu_begin = time.perf_counter(), cpu_s()
    number = read()
    return Rate(number / (time.perf_counter() - begin), (cpu_s() - cpu_begin) / number * 1000)


def pool_rate(read: Callable[[str], int], paths: list[str]) -> Rate:
    """Of a pool that calls `read`."""
    with multiprocessing.get_context("forkserver").Pool(NUM_PROCESSES) as pool:
        pool.map(read, paths[: 4 * BATCH_SIZE], chunksize=16)
        return rate_of(lambda: sum(len(pool.map(read, paths, chunksize=16)) for _ in range(NUM_PASSES)))


def our_rate(source: Source) -> Rate:
    """Of our loader."""
    torch.set_num_threads(1)
    batches = training_batches(source, torch.Tensor.numel, BATCH_SIZE, 0, Position(0, 0), NUM_PROCESSES, pin=False)

    def read() -> int:
        number = 0
        while number < NUM_PASSES * len(source):
            number += len(next(batches)[0].targets)
        return number

    with closing(batches):
        # What was read ahead by then is replaced by what is read ahead, and not counted, at the end.
        for _ in range(WARM_UP_BATCHES):
            next(batches)
        return rate_of(read)


@dataclass(frozen=True, eq=False)
class Slowed:
    """A source that computes for nothing."""

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        end = time.process_time() + EXTRA_MS / 1000 * len(indices)
        while time.process_time() < end:
            pass
        return self.source.fetch(indices, epoch)

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        return self.source.targets(indices, epoch)

    def resident(self, device: torch.device) -> Source:
        return self


def alone(measure: Callable[..., Rate], *arguments: Any) -> Rate:
    """What `measure` returns in a new process, whose children come from it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def round_of(paths: list[str], data: Data, source: Source) -> dict[str, Rate]:
    """The rates of all contenders by name, measured one after the other."""
    assert isinstance(data.format, ImageFormat)
    return {
        "ours": alone(our_rate, source),
        "bare Pillow": alone(pool_rate, by_pillow, paths),
        "bare torchvision": alone(pool_rate, by_torchvision, paths),
        "Pillow's samples": alone(pool_rate, sample_by_pillow, paths),
        "our samples": alone(pool_rate, partial(our_sample, item_format=data.format), paths),
    }


def cpu_ratio(rounds: list[dict[str, Rate]], name: str) -> float:
    """Mean CPU time of contender `name` over ours."""
    return sum(rates[name].cpu_ms for rates in rounds) / sum(rates["ours"].cpu_ms for rates in rounds)


def clock_ratio(rounds: list[dict[str, Rate]], name: str) -> float:
    """Mean rate of ours over that of contender `name`."""
    return sum(rates["ours"].images_per_s for rates in rounds) / sum(rates[name].images_per_s for rates in rounds)


def show(rounds: list[dict[str, Rate]]) -> None:
    """Print means, and ranges over rounds."""
    for name in rounds[0]:
        clock = statistics.mean(rates[name].images_per_s for rates in rounds)
        cpu = sorted(rates[name].cpu_ms for rates in rounds)
        line = f"{name:17}{clock:6.0f} images/s"
        line += f" {statistics.mean(cpu):.3f} [{cpu[0]:.3f}, {cpu[-1]:.3f}] ms of CPU an image"
        if name != "ours":
            each = sorted(cpu_ratio([rates], name) for rates in rounds)
            line += f"; ours by CPU {cpu_ratio(rounds, name):.3f} [{each[0]:.3f}, {each[-1]:.3f}]"
            line += f", by clock {clock_ratio(rounds, name):.3f}"
        print(line, flush=True)


def main() -> int:
    """Print the table; 0 when our rate is high enough and the slowed one is not."""
    torch.set_num_threads(1)
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_ROUNDS
    with tempfile.TemporaryDirectory() as name:
        paths = write_photos(Path(name))
        entry = DATA.get("image_folder")
        data = entry.build(entry.config(path=name, val_fraction=0.01, augment=False, size=SIZE), 0)
        rounds = [round_of(paths, data, data.train) for _ in range(num_rounds)]
        show(rounds)
        bare, own = cpu_ratio(rounds, "bare Pillow"), cpu_ratio(rounds, "our samples")
        slowed_rounds = [round_of(paths, data, Slowed(data.train)) for _ in range(min(num_rounds, 3))]
        slowed = cpu_ratio(slowed_rounds, "bare Pillow"), cpu_ratio(slowed_rounds, "our samples")
    print(f"over bare Pillow {bare:.3f} (limit {LIMIT}); over our samples {own:.3f} (limit {OWN_LIMIT})")
    print(f"with {EXTRA_MS} ms more an image {slowed[0]:.3f} and {slowed[1]:.3f} (have to fall below)")
    return 0 if bare >= LIMIT > slowed[0] and own >= OWN_LIMIT > slowed[1] else 1


if __name__ == "__main__":
    sys.exit(main())
