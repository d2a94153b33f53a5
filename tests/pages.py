"""Pages of the documentation, typed as they stand: their files are written, their commands run, some are killed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from conftest import REPOSITORY
from PIL import Image

from trainer4090.data import digits

KILLED = "# kill it"
PATIENCE_S = 240
_COMMAND = re.compile(r"^ {4}(?:python -m )?trainer4090 (.+)$", re.MULTILINE)


def commands(page: str) -> list[str]:
    """What a page lets one type behind `trainer4090`, its comments included."""
    return _COMMAND.findall((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))


def typed(lines: list[str], folder: Path, packages: Path) -> list[str]:
    """What each command printed, typed in `folder` with the `trainer4090` that lies in `packages`."""
    environment = {**os.environ, "PYTHONPATH": str(packages), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    printed = []
    for line in lines:
        command = [sys.executable, "-m", "trainer4090", *shlex.split(line, comments=True)]
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            if line.endswith(KILLED):
                kill_after_a_save(process, folder)
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (-signal.SIGKILL if line.endswith(KILLED) else 0), (line, errors)
        printed.append(out)
    return printed


def kill_after_a_save(process: subprocess.Popen[str], folder: Path) -> None:
    before = set(folder.rglob("step-*.pt"))
    end = time.monotonic() + PATIENCE_S
    while not set(folder.rglob("step-*.pt")) - before:
        assert process.poll() is None and time.monotonic() < end, "nothing was saved"
        time.sleep(0.02)
    process.kill()


def digit_pictures(folder: Path, counts: dict[str, int]) -> None:
    """Real digits as PNG and JPEG: `counts` of each class below every split's folder, classes by their names."""
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    with np.load(digits.BUILT_IN) as content:
        images, labels = content["images"], content["labels"]
    for label, name in enumerate(names):
        members = iter(np.flatnonzero(labels == label))
        for split, count in counts.items():
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = images[next(members)].reshape(8, 8) * 15
                picture = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
                picture.save(place / (f"{number}.png" if number % 2 else f"{number}.jpg"), quality=95)
