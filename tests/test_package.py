"""The wheel holds everything: it works from a directory that knows nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

TINY = ["train.steps=3", "train.epochs=null", "model=mlp", "model.hidden=[8]", "device=cpu"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the built wheel is installed in, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in names.splitlines():
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "--wheel-dir", str(folder), str(source)], check=True, timeout=300)
    wheel = next(folder.glob("trainer4090-*.whl"))
    target = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, timeout=300)
    yield target


def typed(site: Path, folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "trainer4090", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["precision=amp", "memory=checkpoint", *TINY], "done: 3 updates"),
        (["-m", "precision=fp32,bf16", "memory=none,checkpoint", *TINY], "sweep: 4 jobs, 0 failed"),
        (["plan", "card=rtx4090", "recipe=resnet50"], "NVIDIA GeForce RTX 4090"),
        (["list", "recipe"], "gpt2_124m"),
    ],
    ids=["train", "sweep", "plan", "list"],
)
def test_the_wheel_works_elsewhere(site: Path, tmp_path: Path, words: list[str], expected: str) -> None:
    done = typed(site, tmp_path, words)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.full
def test_the_wheel_is_what_runs(site: Path, tmp_path: Path) -> None:
    code = "import trainer4090, trainer4090.paths as paths; print(trainer4090.__file__, paths.CONF)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert all(part.startswith(str(site)) for part in done.stdout.split())
