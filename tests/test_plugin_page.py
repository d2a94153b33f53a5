"""The page for plugins, followed literally in an empty folder: its files are written, its commands are typed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY
from test_docs import code_of
from test_package import site as site  # a fixture

PAGE = REPOSITORY / "docs" / "plugins.md"
FILES = re.findall(r"^    # (\w+\.py)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
COMMANDS = re.findall(r"^    (python -m trainer4090 .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
KILLED = "  # kill it"
EXPECTED = {
    "list model": "Linear layers with ReLU.",
    "--cfg job": "num_layers: 2",
    "memory=checkpoint": "done: 276 updates",
    "evaluate": "eval loss",
    "-m plugin": "sweep: 4 jobs, 0 failed",
    "resume=last": "going on from",
    "data=shapes": "eval accuracy 1.0",
    "data=rings": "eval accuracy 1.0",
}
"""Part of a command -> part of what it prints."""
PATIENCE_S = 240


def environment(packages: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(packages), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def follow(folder: Path, packages: Path) -> list[str]:
    """Type the page; what each command printed."""
    for name in FILES:
        (folder / name).write_text(code_of(PAGE, name), encoding="utf-8")
    printed = []
    for line in COMMANDS:
        command = [sys.executable, *shlex.split(line, comments=True)[1:]]
        with subprocess.Popen(
            command, cwd=folder, env=environment(packages), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            if line.endswith(KILLED):
                kill_after_a_save(process, folder / "outputs")
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (-signal.SIGKILL if line.endswith(KILLED) else 0), errors
        printed.append(out)
    return printed


def kill_after_a_save(process: subprocess.Popen[str], outputs: Path) -> None:
    before = set(outputs.rglob("step-*.pt"))
    end = time.monotonic() + PATIENCE_S
    while not set(outputs.rglob("step-*.pt")) - before:
        assert process.poll() is None and time.monotonic() < end, "nothing was saved"
        time.sleep(0.02)
    process.kill()


def check(printed: list[str]) -> None:
    assert len(COMMANDS) == len(printed) == 10 and FILES == ["mine.py", "shapes.py"]
    for part, text in EXPECTED.items():
        found = [out for line, out in zip(COMMANDS, printed, strict=True) if part in line]
        assert found and all(text in out for out in found), (part, found)


def test_the_page_works(tmp_path: Path) -> None:
    check(follow(tmp_path, REPOSITORY))


@pytest.mark.full
def test_the_page_works_with_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    check(follow(tmp_path, site))


def test_a_model_takes_about_twenty_lines_and_a_loss_about_ten() -> None:
    text = code_of(PAGE, "mine.py")
    model, loss = text[text.index("class Net") :].split("\n\n\n@dataclass(frozen=True)\nclass FocalConfig")
    lengths = [len([line for line in part.splitlines() if line.strip()]) for part in (model, loss)]
    assert lengths[0] <= 20 and lengths[1] <= 12, lengths
