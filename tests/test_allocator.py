"""Settings of the allocator: expandable segments on a GPU under Linux, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from conftest import REPOSITORY, plan_of, python_path

from trainer4090.allocator import EXPANDABLE, Surroundings, allocator, surroundings
from trainer4090.card import CPU, Card, load

RTX4090 = load(REPOSITORY / "conf" / "card" / "rtx4090.yaml")
OWN = ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
CASES = {
    "linux": (
        RTX4090,
        "linux",
        None,
        ((("PYTORCH_ALLOC_CONF", EXPANDABLE),), "expandable_segments:True, against gaps"),
    ),
    "own": (RTX4090, "linux", OWN, ((), "as PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 says")),
    "windows": (RTX4090, "win32", None, ((), "")),
    "cpu": (CPU, "linux", None, ((), "")),
}


@pytest.mark.parametrize(("card", "platform", "own", "expected"), CASES.values(), ids=CASES)
def test_what_is_set(card: Card, platform: str, own: tuple[str, str] | None, expected: tuple) -> None:
    chosen = allocator(card, Surroundings(platform, own))
    assert (chosen.settings.environment, chosen.label) == expected


def test_the_variable_that_torch_reads_first_is_the_users() -> None:
    both = {"PYTORCH_ALLOC_CONF": "expandable_segments:False", OWN[0]: OWN[1]}
    assert surroundings(both).variable == OWN
    assert surroundings({"PYTORCH_ALLOC_CONF": "x"}).variable == ("PYTORCH_ALLOC_CONF", "x")
    assert surroundings({}).variable is None


@pytest.mark.skipif(sys.platform != "linux", reason="expandable segments need Linux")
def test_the_plan_says_so_and_the_process_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    made = plan_of(card=RTX4090)
    assert "allocator     expandable_segments:True" in made.describe()
    assert made.allocator.settings.environment == (("PYTORCH_ALLOC_CONF", EXPANDABLE),)
    assert "allocator" not in plan_of().describe()
    monkeypatch.setenv(*OWN)
    made = plan_of(card=RTX4090)
    assert "allocator     as PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 says" in made.describe()
    assert made.allocator.settings.environment == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_segments_expand() -> None:
    """In a process of its own: torch reads the variable once."""
    code = (
        "import torch; from trainer4090.process import apply_settings; from trainer4090.records import Settings\n"
        f"apply_settings(Settings(environment=(('PYTORCH_ALLOC_CONF', {EXPANDABLE!r}),)), False)\n"
        "x = torch.ones(2**24, device='cuda')\n"
        "assert all(segment['is_expandable'] for segment in torch.cuda.memory_snapshot())"
    )
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environment, "PYTHONPATH": python_path()})
