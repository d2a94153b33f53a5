"""ResNet-50 at 224 pixels, fp16 AMP, compiled: the command line beside the loop that one would write, in turn.

    python -m benchmarks.resnet50 [--batch-size 256] [--pairs 3]

Each contender is a process of its own; needs one NVIDIA GPU. Both train on one fixed batch of noise, ours
through the loader: the card draws its full power here and lowers its clock, so the numbers that flow through it show in
the speed. Clock and power stand beside it, and a loop that trains NaN, which needs less of both, is an error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

from trainer4090.report.nvml import open_sampler

GPU_TAGS = ("gpu/sm_clock_mhz", "gpu/power_w")
LEAST_RATIO = 0.97
NUM_UPDATES = 160
WARM_UP = 40


@dataclass(frozen=True)
class Speed:
    """Steady speed of a contender, and what the card did meanwhile."""

    images_per_s: float
    sm_clock_mhz: float
    power_w: float

    def __str__(self) -> str:
        return f"{self.images_per_s:,.0f} img/s at {self.sm_clock_mhz:,.0f} MHz, {self.power_w:.0f} W"


def ours(batch_size: int) -> Speed:
    """`trainer4090 recipe=resnet50`, from the files of its run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        words = [
            "recipe=resnet50",
            f"train.batch_size={batch_size}",
            f"train.steps={NUM_UPDATES}",
            f"train.log_every={WARM_UP}",
            f"data.num_evaluation={batch_size}",
            f"data.pool_size={batch_size}",
            f"run.dir={folder}",
        ]
        subprocess.run([sys.executable, "-m", "trainer4090", *words], check=True, stdout=subprocess.DEVNULL)
        speed = json.loads((folder / "result.json").read_text())["items_per_s"]
        points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        clocks, powers = ([point[tag] for point in points if tag in point] for tag in GPU_TAGS)
        return Speed(speed, statistics.median(clocks), statistics.median(powers))


def by_hand(batch_size: int) -> Speed:
    """The hand-written loop, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.resnet50", "--by-hand", "--batch-size", str(batch_size)]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-3:]
    return Speed(*map(float, words))


def loop_by_hand(batch_size: int) -> Speed:
    """Speed of the updates after warm-up.

    Raises:
        RuntimeError: the loop has trained NaN.
    """
    import torch

    from benchmarks.gpu.loops import DEVICE, resnet50_update

    update, _ = resnet50_update(batch_size, compiled=True, cache_casts=True)
    for _ in range(WARM_UP):
        update()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(NUM_UPDATES - WARM_UP):
        loss = update()
    readings = open_sampler(str(torch.cuda.get_device_properties(DEVICE).uuid), print).values()
    torch.cuda.synchronize()
    speed = (NUM_UPDATES - WARM_UP) * batch_size / (time.perf_counter() - start)
    if not loss.isfinite():
        raise RuntimeError(f"the hand-written loop has trained to a loss of {float(loss)}: its speed says nothing")
    return Speed(speed, *(readings[tag] for tag in GPU_TAGS))


def main() -> int:
    """Print the pairs and the ratio of medians; 0 when it is at least `LEAST_RATIO`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--by-hand", action="store_true", help="only the hand-written loop, in this process")
    options = parser.parse_args()
    if options.by_hand:
        print(*astuple(loop_by_hand(options.batch_size)))
        return 0
    pairs = []
    for pair in range(options.pairs):
        pairs.append((ours(options.batch_size), by_hand(options.batch_size)))
        print(f"pair {pair + 1}: ours {pairs[-1][0]}; by hand {pairs[-1][1]}", flush=True)
    ratios = [mine.images_per_s / theirs.images_per_s for mine, theirs in pairs]
    mine, theirs = (statistics.median(each.images_per_s for each in column) for column in zip(*pairs, strict=True))
    print(
        f"ratio of medians {mine / theirs:.3f} (pairs {min(ratios):.3f} to {max(ratios):.3f}), at least {LEAST_RATIO}"
    )
    return 0 if mine / theirs >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
