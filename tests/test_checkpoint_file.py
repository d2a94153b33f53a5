"""A checkpoint file is complete and as it was written, or it is refused; what was there before is never harmed."""

from __future__ import annotations

import hashlib
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REPOSITORY

from trainer4090 import checkpoint_file
from trainer4090.errors import CheckpointFileError, RunFolderError, exit_code_of

NUM_FLIPS = 60
MOUNT = ("mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs")


def state_of(step: int, num_values: int = 1000) -> dict[str, Any]:
    weight = torch.arange(num_values, dtype=torch.float32) * step
    return {"step": step, "model": {"weight": weight, "half": weight.half()}, "none": None, "list": [1, 0.5, "text"]}


def save(folder: Path, *steps: int, best: int | None = None, num_values: int = 1000) -> list[Path]:
    record = None if best is None else {"step": best, "eval": {"loss": 0.5}}
    return [checkpoint_file.save(folder, step, state_of(step, num_values), record) for step in steps]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_round_trip(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 3)
    loaded, expected = checkpoint_file.load(path), state_of(3)
    for name, tensor in expected.pop("model").items():
        assert torch.equal(loaded["model"][name], tensor) and loaded["model"][name].dtype == tensor.dtype
    loaded.pop("model")
    assert loaded == expected and path.name == "step-00000003.pt" and checkpoint_file.step_of(path) == 3


def test_default_torch_load_reads_it(tmp_path: Path) -> None:
    assert torch.load(save(tmp_path, 3)[0])["step"] == 3


def test_source_never_unpickles_foreign_classes() -> None:
    """B38."""
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "trainer4090").rglob("*.py")]
    loads = [line for source in sources for line in source.splitlines() if "torch.load(" in line]
    assert len(loads) == 3 and all("weights_only=True" in load for load in loads)
    assert not any("weights_only=False" in source for source in sources)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 3)
    draw = random.Random(0)
    for bit in [draw.randrange(8 * path.stat().st_size) for _ in range(NUM_FLIPS)]:
        flip(path, bit)
        with pytest.raises(CheckpointFileError, match="does not match its sha256"):
            checkpoint_file.load(path)
        flip(path, bit)
    assert checkpoint_file.load(path)["step"] == 3


def cut(keep: Callable[[int], int]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: keep(path.stat().st_size)])


def digest(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (cut(lambda size: size // 2), "its content does not match its sha256"),
    "minus 100 bytes": (cut(lambda size: size - 100), "its content does not match its sha256"),
    "empty": (cut(lambda size: 0), "its content does not match its sha256"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "its content does not match its sha256"),
    "no digest": (lambda path: digest(path).unlink(), "its .sha256 is missing or empty"),
    "empty digest": (lambda path: digest(path).write_text(""), "its .sha256 is missing or empty"),
    "digest is no text": (lambda path: digest(path).write_bytes(b"\xff\xfe"), "its .sha256 is missing or empty"),
    "digest of another": (lambda path: digest(path).write_text(f"{0:064}  x\n"), "its content does not match"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read (Is a directory)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_file_before_is_taken(tmp_path: Path, damage: str) -> None:
    older, newer = save(tmp_path, 3, 4)
    change, reason = DAMAGES[damage]
    change(newer)
    notices: list[str] = []
    with pytest.raises(CheckpointFileError) as caught:
        checkpoint_file.load(newer)
    assert reason in str(caught.value) and str(newer) in str(caught.value) and exit_code_of(caught.value) == 7
    assert checkpoint_file.newest_valid(tmp_path, notices.append) == older
    assert len(notices) == 1 and str(newer) in notices[0] and reason in notices[0]


def test_no_valid_file_is_exit_7(tmp_path: Path) -> None:
    for path in save(tmp_path, 3, 4):
        cut(lambda size: 10)(path)
    with pytest.raises(CheckpointFileError, match="none of 2 checkpoint files") as caught:
        checkpoint_file.newest_valid(tmp_path, lambda text: None)
    assert exit_code_of(caught.value) == 7


def test_verified_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    """Whoever can write the digest too gets no further than torch's restricted unpickler."""
    path = tmp_path / "step-00000001.pt"
    torch.save({"step": Path("foreign")}, path)
    digest(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(CheckpointFileError, match="Weights only load failed"):
        checkpoint_file.load(path)


@pytest.mark.parametrize(
    ("best", "kept"),
    [(None, [4, 5]), (5, [4, 5]), (4, [4, 5]), (2, [2, 4, 5])],
    ids=["no best", "best is last", "best is kept anyway", "best is older"],
)
def test_kept_files(tmp_path: Path, best: int | None, kept: list[int]) -> None:
    for step in range(1, 6):
        save(tmp_path, step, best=best if best is not None and step >= best else None)
    files = [name for step in kept for name in (f"step-{step:08d}.pt", f"step-{step:08d}.pt.sha256")]
    assert names(tmp_path) == sorted([*files, "last.json", *(["best.json"] if best else [])])
    assert checkpoint_file.named(tmp_path, "last", print).name == "step-00000005.pt"
    if best is not None:
        assert checkpoint_file.named(tmp_path, "best", print).name == f"step-{best:08d}.pt"


@pytest.mark.parametrize("which", ["best", "missing.pt"])
def test_named_file_that_is_not_there(tmp_path: Path, which: str) -> None:
    save(tmp_path, 3)
    with pytest.raises(CheckpointFileError):
        checkpoint_file.named(tmp_path, which, print)


def test_remnants_of_killed_saves_go_with_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 3)
    folder = tmp_path / "checkpoints"
    for name in (".step-00000004.pt.77.tmp", ".last.json.77.tmp", "step-00000002.pt.sha256"):
        (folder / name).write_text("half")
    save(tmp_path, 4)
    assert [name for name in names(tmp_path) if "tmp" in name or "02.pt" in name] == []


def test_no_file_is_ever_without_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill may come between any two removals, in whatever order the folder lists its names."""
    glob, unlink, checked = Path.glob, Path.unlink, 0

    def removed(self: Path, missing_ok: bool = False) -> None:
        nonlocal checked
        unlink(self, missing_ok)
        assert all(checkpoint_file.damage(path) is None for path in checkpoint_file.files(tmp_path))
        checked += 1

    monkeypatch.setattr(Path, "glob", lambda self, pattern: sorted(glob(self, pattern), reverse=True))
    monkeypatch.setattr(Path, "unlink", removed)
    save(tmp_path, 1, 2, 3, 4)
    assert checked >= 4 and names(tmp_path)[0] == "last.json" and names(tmp_path)[1] == "step-00000003.pt"


def test_cut_back_sets_newer_files_aside(tmp_path: Path) -> None:
    save(tmp_path, 3, 4, 5, best=5)
    notices: list[str] = []
    checkpoint_file.cut_back(tmp_path, 4, {"step": 3, "eval": {"loss": 1.0}}, notices.append)
    assert len(notices) == 1 and "aside-step-00000005.pt" in notices[0]
    # The best file of update 4's state is gone already: a pointer to nothing would be worse than none.
    aside = ["aside-step-00000005.pt", "aside-step-00000005.pt.sha256"]
    assert names(tmp_path) == [*aside, "last.json", "step-00000004.pt", "step-00000004.pt.sha256"]
    save(tmp_path, 6)
    assert [checkpoint_file.step_of(path) for path in checkpoint_file.files(tmp_path)] == [6, 4]


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let writes behind `num_bytes` fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_bytes", [0, 100, 5000, 39_000], ids=str)
def test_failed_write_leaves_older_files(tmp_path: Path, num_bytes: int) -> None:
    save(tmp_path, 3, 4, best=3, num_values=10_000)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with largest_file(num_bytes), pytest.raises(RunFolderError) as caught:
        save(tmp_path, 5, num_values=10_000)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert exit_code_of(caught.value) == 9
    assert [str(problem).split(";")[0] for problem in caught.value.problems] == [
        f"{tmp_path}/checkpoints/step-00000005.pt: File too large"
    ]


def test_full_disk(tmp_path: Path) -> None:
    if (
        not shutil.which(MOUNT[0])
        or subprocess.run([*MOUNT, str(tmp_path)], capture_output=True, check=False).returncode
    ):
        pytest.skip("only root may mount a file system of 300 KB")
    try:
        save(tmp_path, 3, 4, num_values=20_000)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(RunFolderError, match="No space left on device; free some space") as caught:
            save(tmp_path, 5, num_values=20_000)
        assert exit_code_of(caught.value) == 9
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert checkpoint_file.newest_valid(tmp_path, print).name == "step-00000004.pt"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_error_that_is_not_the_disks_stays_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_device(state: Any, file: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch, "save", lose_device)
    with pytest.raises(RuntimeError, match="CUDA error"):
        save(tmp_path, 3)
    assert names(tmp_path) == []
