"""What only a GPU shows of an ablation: memory, MFU, how products round, and the readings of the card."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch

from trainer4090.__main__ import main
from trainer4090.executors.activity import Activity

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WORDS = ("device=cuda", "run.dir=out", "model=resnet18", "data=synthetic_images", "data.pool_size=64")
LENGTH = ("data.height=64", "data.width=64", "data.num_evaluation=64", "train.batch_size=64", "ablate.repeats=1")


def test_the_ladder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", *WORDS, *LENGTH, "ablate.seconds=2.5"]) == 0
    rows = list(csv.DictReader(io.StringIO(Path("out/ablate.csv").read_text(encoding="utf-8"))))
    assert [row["label"] for row in rows] == ["baseline", "+ amp", "+ checkpoint", "+ fused (all)"]
    plain, half, recomputed, everything = rows
    assert {row["status"] for row in rows} == {"ok"}, Path("out/ablate.md").read_text(encoding="utf-8")
    assert {row["parity"] for row in rows} == {"same"}, Path("out/ablate.md").read_text(encoding="utf-8")
    assert not [row["doubts"] for row in rows if row["doubts"]]
    assert all(0 < float(row["peak_allocated_gib"]) <= float(row["peak_reserved_gib"]) for row in rows)
    assert all(0 < float(row["gpu_utilization"]) <= 100 for row in rows)
    assert float(recomputed["peak_allocated_gib"]) < float(half["peak_allocated_gib"])
    assert "float32 products exact" in plain["active"] and "products in float16" in half["active"]
    assert "operators recomputed" in recomputed["active"] and "graphs compiled" in everything["active"]
    assert float(everything["compile_s"]) > float(plain["compile_s"])


def test_out_of_memory_is_a_row() -> None:
    large = "model=vit_b_16 data.height=224 data.width=224 train.batch_size=16384"
    words = ("ablate.seconds=0", f'ablate.rows=["train.batch_size=64","{large}"]')
    assert main(["ablate", *WORDS, *LENGTH, *words]) == 0
    first, second = csv.DictReader(io.StringIO(Path("out/ablate.csv").read_text(encoding="utf-8")))
    assert (first["status"], second["status"]) == ("ok", "oom")
    assert second["items_per_s"] == "" and "exhausted" in second["reason"]


def test_replays_of_a_graph_are_counted() -> None:
    values = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values.add_(1)
    activity = Activity([values])
    with activity.watching():
        graph.replay()
        graph.replay()
    assert activity.facts()["graph_replays"] == 2
    graph.replay()
    torch.cuda.synchronize()
    assert float(values[0]) == 3
