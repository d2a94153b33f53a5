"""Cards: exact names, known rates, and files that are no card."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer4090 import device, paths
from trainer4090.card import CPU, Dtype, Present, identify, load
from trainer4090.errors import ConfigError, MachineError

KNOWN = [load(path) for name, path in paths.options("card").items() if name != "auto"]
RTX4090 = next(card for card in KNOWN if card.name == "rtx4090")


def gpu(name: str, index: int = 0, free_mib: int = 20_000) -> Present:
    return Present(index, f"GPU-{index}", name, "8.9", 24_564, free_mib)


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", "unknown"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "unknown"),
        ("NVIDIA H200", "h200"),
        ("Foo", "unknown"),
    ],
)
def test_a_card_is_known_by_its_exact_name(name: str, card: str) -> None:
    found = identify(gpu(name), KNOWN)
    assert found.name == card
    assert (found.peak_tflops("float16") is None) == (card == "unknown")


PEAKS: list[tuple[Dtype, float]] = [("float32", 82.6), ("tf32", 82.6), ("float16", 165.2), ("bfloat16", 165.2)]


@pytest.mark.parametrize(("dtype", "peak"), PEAKS)
def test_peaks_of_the_4090(dtype: Dtype, peak: float) -> None:
    assert RTX4090.peak_tflops(dtype) == peak
    assert CPU.peak_tflops(dtype) is None


@pytest.mark.parametrize("text", ["name: [", "name: x", "- a", ""], ids=["no yaml", "incomplete", "list", "empty"])
def test_a_file_that_is_no_card_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load(path)


TWO = [gpu("NVIDIA GeForce RTX 4090", 1, 20_000), gpu("NVIDIA H200", 0, 10_000)]


@pytest.mark.parametrize(
    ("wish", "uuid"), [("auto", "GPU-1"), ("cuda", "GPU-1"), ("cuda:0", "GPU-0"), ("cuda:1", "GPU-1"), ("cpu", None)]
)
def test_the_device_that_is_chosen(monkeypatch: pytest.MonkeyPatch, wish: str, uuid: str | None) -> None:
    """`auto` takes the card with most free memory and says so; a number is the driver's."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device.cards, "present_gpus", lambda: TWO)
    chosen = device.choose(wish, None)
    assert chosen.uuid == uuid
    assert wish in chosen.reason
    assert ("most free memory" in chosen.reason) == (wish in ("auto", "cuda"))


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.cards, "present_gpus", list)
    assert device.choose("auto", None).card == CPU
    with pytest.raises(MachineError, match="no GPU answers"):
        device.choose("cuda", None)


def test_a_number_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device.cards, "present_gpus", lambda: TWO)
    with pytest.raises(MachineError, match="cuda:0 to cuda:1"):
        device.choose("cuda:2", None)


def test_another_card_than_the_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of another card would make a wrong MFU."""
    monkeypatch.setattr(device.cards, "present_gpus", list)
    with pytest.raises(ConfigError, match="use card=auto, or the verb plan"):
        device.choose("auto", RTX4090)


@pytest.mark.parametrize(
    ("wish", "left"),
    [(None, 2), ("", 0), ("-1", 0), ("GPU-0", 1), ("GPU-7", 0), ("1", 1), ("0,1", 2)],
    ids=["all", "empty", "minus one", "uuid", "other uuid", "number", "numbers"],
)
def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, wish: str | None, left: int) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if wish is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wish)
    assert len(device.visible(TWO)) == left
