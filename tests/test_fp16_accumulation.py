"""`precision.accumulate=fp16`: where it is used, what the plan says elsewhere, and the peak that MFU counts with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, plan_of
from runs import COMMON, new_folder, train

from trainer4090.card import CPU, Card, load
from trainer4090.process import apply_settings

RTX4090, H200 = (load(REPOSITORY / "conf" / "card" / f"{name}.yaml") for name in ("rtx4090", "h200"))
UNKNOWN = replace(RTX4090, fp16_tflops=None, fp16_accumulate_tflops=None)
FP16 = ("precision=amp", "precision.accumulate=fp16")
CASES = {  # card, words, whether fp16 sums are used, peak in TFLOP/s, what a notice says (None: there is none)
    "rtx4090": (RTX4090, FP16, True, 330.3, None),
    "rtx4090-fp32": (RTX4090, ("precision=amp",), False, 165.2, None),
    "h200": (H200, FP16, False, 989.0, "NVIDIA H200 is no faster with it (989 TFLOP/s either way)"),
    "cpu": (CPU, FP16, False, None, "a mode of NVIDIA tensor cores, which a CPU lacks"),
    "unknown": (UNKNOWN, FP16, True, None, None),
}


@pytest.fixture(autouse=True)
def _flag_as_before() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_fp16_accumulation
    yield
    torch.backends.cuda.matmul.allow_fp16_accumulation = before


@pytest.mark.parametrize(("card", "words", "used", "peak", "says"), CASES.values(), ids=CASES)
def test_where_it_is_used(card: Card, words: tuple[str, ...], used: bool, peak: float | None, says: str | None) -> None:
    made = plan_of(*words, card=card)
    torch.backends.cuda.matmul.allow_fp16_accumulation = not used
    apply_settings(made.settings, deterministic=False)
    assert torch.backends.cuda.matmul.allow_fp16_accumulation == used
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction  # another flag: torch's default stays
    assert card.peak_tflops(made.precision.arithmetic, made.precision.accumulation) == peak
    assert ("matrix products in float16, summed in float16" in made.describe()) == used
    notices = [str(notice) for notice in made.precision.notices]
    assert len(notices) == (says is not None) and all(str(says) in notice for notice in notices)
    assert all(notice.startswith("precision.accumulate: asked fp16, got fp32: ") for notice in notices)


def test_mfu_counts_with_the_peak_of_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Card, "peak_tflops", lambda self, *arithmetic: asked.append(arithmetic))
    words = ("model=mlp", "model.hidden=[16]", *FP16, "train.steps=2", "train.eval_every=null")
    assert train(new_folder(tmp_path / "work"), *COMMON, *words) == 0
    assert asked == [("float16", "float32")]
