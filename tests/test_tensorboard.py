"""TensorBoard itself reads what we write: its accumulator, and its server over HTTP."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c as reference_crc
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

from trainer4090.report import event_file, open_report
from trainer4090.report.event_file import masked_crc32c, next_path
from trainer4090.report.hyperparameters import flat
from trainer4090.report.metrics import Metrics

TREE = {
    "optimizer": {"name": "adam", "betas": [0.9, 0.999], "fused": True},
    "resume": None,
    "train": {"steps": 20, "clip_norm": 1.5},
    "memory": {"none": {}},
}


def train(folder: Path, start_step: int, stop_step: int, final: dict[str, float] | None = None) -> None:
    """Writes updates start_step + 1 to stop_step as a run would; without `final` it is killed there."""
    folder.mkdir(exist_ok=True)
    report = open_report(folder, start_step, 20, TREE, {"spec": "train:\n  steps: 20"}, live=False)
    for step in range(start_step + 1, stop_step + 1):
        report.write(step, {"train/loss": 100.0 * start_step + step, "train/lr": 0.1, "speed/items_per_s": 800.0})
    report.write(stop_step, {"eval/loss": 0.25})
    report.close({} if final is None else final)


def accumulated(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder / "tb"), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def steps(accumulator: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in accumulator.Scalars(tag)]


@pytest.mark.parametrize("content", [b"", b"\0", b"a", b"123456789", bytes(range(256)) * 3], ids=len)
def test_checksums_are_tensorboards(content: bytes) -> None:
    assert masked_crc32c(content) == reference_crc(content)


def test_event_files_sort_by_start(tmp_path: Path, monkeypatch: Any) -> None:
    names = []
    for now, process in ((1000.9, 9), (1000.9, 10), (500.0, 1)):  # same second, then a clock set back
        monkeypatch.setattr(event_file.time, "time", lambda now=now: now)
        monkeypatch.setattr(event_file.os, "getpid", lambda process=process: process)
        names.append(next_path(tmp_path).name)
        next_path(tmp_path).touch()
    assert sorted(names) == names and len(set(names)) == 3


def test_scalars_come_back_and_share_one_event(tmp_path: Path) -> None:
    report = open_report(tmp_path, 0, 20, TREE, {}, live=False)
    sizes = []
    for step in (1, 2):
        report.write(step, {"train/loss": 0.5 * step, "train/lr": math.nan, "gpu/power_w": math.inf})
        sizes.append(next((tmp_path / "tb").iterdir()).stat().st_size)
    # Written before close: nothing waits in a buffer for a process that may be killed.
    (path,) = (tmp_path / "tb").iterdir()
    record = path.read_bytes()[sizes[0] :]
    assert struct.unpack("<Q", record[:8])[0] == len(record) - 16
    report.close({})
    accumulator = accumulated(tmp_path)
    assert [(event.step, event.value) for event in accumulator.Scalars("train/loss")] == [(1, 0.5), (2, 1.0)]
    assert math.isnan(accumulator.Scalars("train/lr")[0].value)
    assert accumulator.Scalars("gpu/power_w")[0].value == math.inf
    assert {"train/loss", "train/lr", "gpu/power_w"} == set(accumulator.Tags()["scalars"])


@pytest.mark.parametrize("num_kills", [1, 2])
def test_resuming_keeps_one_event_a_step(tmp_path: Path, num_kills: int) -> None:
    train(tmp_path, 0, 15)
    for _ in range(num_kills - 1):
        train(tmp_path, 10, 17)
    train(tmp_path, 10, 20, {"eval/loss": 0.25})
    accumulator = accumulated(tmp_path)
    for tag in ("train/loss", "train/lr", "speed/items_per_s"):
        assert steps(accumulator, tag) == list(range(1, 21))
    assert [event.value for event in accumulator.Scalars("train/loss")][9:11] == [10.0, 1011.0]
    assert steps(accumulator, "eval/loss") == [20]
    served = PluginEventAccumulator(str(tmp_path / "tb"), tensor_size_guidance={"scalars": 0})  # what the server uses
    served.Reload()
    assert [event.step for event in served.Tensors("train/loss")] == list(range(1, 21))
    assert [event.step for event in served.Tensors("spec")] == [0, 11]
    assert len(list((tmp_path / "tb").iterdir())) == num_kills + 1
    lines = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in lines if "train/loss" in record] == list(range(1, 21))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param([0.9, 0.999], "[0.9, 0.999]", id="list"),
        pytest.param((1, "a", None), '[1, "a", null]', id="tuple"),
        pytest.param([{"a": 1}], '[{"a": 1}]', id="mapping in a list"),
        pytest.param({}, "{}", id="empty mapping"),
        pytest.param(None, "null", id="null"),
        pytest.param(True, True, id="true"),
        pytest.param(3, 3.0, id="int"),
        pytest.param(2**60 + 1, str(2**60 + 1), id="int beyond fp64"),
        pytest.param(0.1, 0.1, id="float"),
        pytest.param(math.nan, "nan", id="nan"),
        pytest.param("1e-3", "1e-3", id="text"),
        pytest.param(numpy.float32(0.5), 0.5, id="numpy float"),
        pytest.param(numpy.int64(7), 7.0, id="numpy int"),
        pytest.param(numpy.array([1, 2]), "[1 2]", id="numpy array"),
        pytest.param([numpy.float32(0.5)], '["0.5"]', id="numpy in a list"),
        pytest.param(Path("a/b"), "a/b", id="path"),
    ],
)
def test_hyperparameters_lose_nothing(tmp_path: Path, value: Any, expected: Any) -> None:
    tree = {"group": {"key": value}, "other": 1}
    assert flat(tree) == {"group.key": expected, "other": 1.0}
    assert type(flat(tree)["group.key"]) is type(expected)  # True == 1.0
    open_report(tmp_path, 0, 1, tree, {}, live=False).close({})
    content = accumulated(tmp_path).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    stored = parse_session_start_info_plugin_data(content).hparams["group.key"]
    assert getattr(stored, stored.WhichOneof("kind")) == expected


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        pytest.param({"eval/accuracy": 0.9}, {"eval/accuracy": ([20], 0.9)}, id="new tag"),
        pytest.param(
            {"train/loss": 7.0}, {"train/loss": (list(range(1, 21)), 20.0)}, id="has a value at the last step"
        ),
        pytest.param({}, {}, id="not finished"),
    ],
)
def test_final_metrics_are_attached_once(
    tmp_path: Path, final: dict[str, float], expected: dict[str, tuple[list[int], float]]
) -> None:
    train(tmp_path, 0, 20, final)
    accumulator = accumulated(tmp_path)
    for tag, (tag_steps, value) in expected.items():
        assert steps(accumulator, tag) == tag_steps
        assert accumulator.Scalars(tag)[-1].value == pytest.approx(value)
    assert ("_hparams_/session_end_info" in accumulator.Tags()["tensors"]) == bool(final)


def test_finished_run_that_is_resumed_without_work_doubles_nothing(tmp_path: Path) -> None:
    train(tmp_path, 0, 20, {"eval/loss": 0.25})
    open_report(tmp_path, 20, 20, TREE, {}, live=False).close({"eval/loss": 0.25})
    assert steps(accumulated(tmp_path), "eval/loss") == [20]


def test_charts_name_tags_of_the_contract(tmp_path: Path) -> None:
    open_report(tmp_path, 0, 1, {}, {}, live=False).close({})
    (tensor,) = accumulated(tmp_path).Tensors("custom_scalars__config__")
    layout = Layout.FromString(tensor.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == ["loss", "speed", "memory", "gpu"]
    assert list(layout.category[0].chart[0].multiline.tag) == ["^train/loss$", "^eval/loss$"]


def test_every_evaluated_tag_has_a_chart(tmp_path: Path) -> None:
    tags = ["eval/loss", "eval/accuracy", "eval/top5", "eval/F1Score"]
    open_report(tmp_path, 0, 1, {}, {}, live=False, eval_tags=tags).close({})
    (tensor,) = accumulated(tmp_path).Tensors("custom_scalars__config__")
    *_, category = Layout.FromString(tensor.tensor_proto.string_val[0]).category
    charts = {chart.title: list(chart.multiline.tag) for chart in category.chart}
    assert (category.title, charts) == ("metrics", {"top5": ["^eval/top5$"], "F1Score": ["^eval/F1Score$"]})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("damage", ["disk full", "file closed"])
def test_a_failing_tensorboard_is_noticed_once_and_ends_nothing(tmp_path: Path, damage: str, capsys: Any) -> None:
    report = open_report(tmp_path, 0, 3, TREE, {}, live=False)
    report.write(1, {"train/loss": 1.0})
    (path,) = (tmp_path / "tb").iterdir()
    with open("/dev/full", "wb", buffering=0) as full:
        for link in Path("/proc/self/fd").iterdir():
            if link.is_symlink() and os.readlink(link) == str(path):
                os.dup2(full.fileno(), int(link.name)) if damage == "disk full" else os.close(int(link.name))
    for step in (2, 3):
        report.write(step, {"train/loss": 1.0})
    report.close({"eval/loss": 1.0})
    assert capsys.readouterr().out.count("TensorBoard is off") == 1
    assert (tmp_path / "train.log").read_text().count("TensorBoard is off") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("cause", ["file in the way", "package missing"])
def test_a_tensorboard_that_cannot_start_is_noticed_once(
    tmp_path: Path, cause: str, monkeypatch: Any, capsys: Any
) -> None:
    if cause == "file in the way":
        (tmp_path / "tb").write_text("")
    else:
        monkeypatch.setitem(sys.modules, "trainer4090.report.tensorboard", None)
    report = open_report(tmp_path, 0, 3, TREE, {}, live=False)
    report.write(1, {"train/loss": 1.0})
    report.close({"eval/loss": 1.0})
    assert capsys.readouterr().out.count("TensorBoard is off") == 1


# The server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a TensorBoard that serves one killed and resumed run, and one other run."""
    outputs = tmp_path_factory.mktemp("outputs")
    train(outputs / "run", 0, 15)
    train(outputs / "run", 10, 20, {"eval/accuracy": 0.9})
    train(outputs / "other", 0, 20, {"eval/accuracy": 0.8})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(outputs), "--host", "127.0.0.1"]
    with (outputs / "server.log").open("w") as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def fetch(address: str, content: dict[str, Any] | None = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def poll(address: str, ready: Any) -> Any:
    """The server's answer as soon as it is complete; it starts and loads in the background."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            answer = fetch(address)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            answer = None
        if answer is not None and ready(answer):
            return answer
        time.sleep(0.2)
    pytest.fail(f"{address} has not answered in time")


def test_the_server_shows_two_runs_with_one_value_a_step(server: str) -> None:
    runs = poll(f"{server}/data/runs", lambda answer: len(answer) >= 2)
    assert sorted(runs) == ["other/tb", "run/tb"]
    query = urllib.parse.urlencode({"run": "run/tb", "tag": "train/loss"})
    served = poll(f"{server}/data/plugin/scalars/scalars?{query}", lambda answer: len(answer) >= 20)
    assert [(step, value) for _, step, value in served] == [
        (step, float(step if step <= 10 else 1000 + step)) for step in range(1, 21)
    ]


def test_the_server_shows_hyperparameters_with_metrics(server: str) -> None:
    poll(f"{server}/data/runs", lambda answer: len(answer) >= 2)
    request = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
        "colParams": [{"metric": {"group": "", "tag": "eval/accuracy"}, "order": "ORDER_DESC"}],
        "startIndex": 0,
        "sliceSize": 10,
    }
    groups = fetch(f"{server}/data/plugin/hparams/session_groups", request)["sessionGroups"]
    assert [group["name"] for group in groups] == ["run/tb", "other/tb"]
    shown = groups[0]["hparams"]
    assert shown == {
        "optimizer.name": "adam",
        "optimizer.betas": "[0.9, 0.999]",
        "optimizer.fused": True,
        "resume": "null",
        "train.steps": 20.0,
        "train.clip_norm": 1.5,
        "memory.none": "{}",
    }
    metrics = {metric["name"]["tag"]: metric["value"] for metric in groups[0]["metricValues"]}
    assert metrics["eval/accuracy"] == pytest.approx(0.9)
    assert groups[0]["sessions"][0]["status"] == "STATUS_SUCCESS"


def test_the_server_shows_the_spec_and_the_charts(server: str) -> None:
    texts = poll(f"{server}/data/plugin/text/text?run=other/tb&tag=spec", bool)
    assert "steps: 20" in texts[0]["text"]
    layout = poll(f"{server}/data/plugin/custom_scalars/layout", bool)
    assert [category["title"] for category in layout["category"]] == ["loss", "speed", "memory", "gpu"]


def test_metrics_and_tensorboard_have_the_same_tags(tmp_path: Path) -> None:
    train(tmp_path, 0, 5)
    rows = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert set().union(*rows) - {"step"} == set(accumulated(tmp_path).Tags()["scalars"])
    Metrics(tmp_path / "metrics.jsonl", 5).close({})
