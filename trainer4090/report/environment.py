"""The environment of a run: versions, machine, cards, and the state of the code around it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer4090.report import nvml

PACKAGES = ("trainer4090", "torch", "torchvision", "triton", "hydra-core", "omegaconf", "numpy", "tensorboard")
GIT_TIMEOUT_S = 5.0
DIFF_LIMIT = 1_000_000
"""Characters of `git diff` that are kept: a data file under version control must not fill the run folder."""


def environment() -> dict[str, Any]:
    """Versions, machine, driver with its cards, and the git state of the working directory; absent where unknown."""
    tree: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": _versions(),
    }
    gpus = nvml.describe()
    git = _git_state(Path.cwd())
    return tree | ({"gpu": gpus} if gpus else {}) | ({"git": git} if git else {})


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # not installed, hence absent
    return versions


def _git_state(folder: Path) -> dict[str, str]:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    if diff is None:
        return {"commit": commit.strip()}
    cut = f"\n[cut: the first {DIFF_LIMIT} of {len(diff)} characters]\n" if len(diff) > DIFF_LIMIT else ""
    return {"commit": commit.strip(), "diff": diff[:DIFF_LIMIT] + cut}


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command, or None without git, outside a checkout or after the timeout."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        # Reading must not take the index lock away from a git command of the user.
        variables = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, env=variables, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None
