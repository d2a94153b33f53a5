"""metrics.jsonl, console, NVML, timing, speed, FLOPs and the files of a run folder."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer4090 import card, disk
from trainer4090.errors import RunFolderError
from trainer4090.records import Batch
from trainer4090.report import Reporter, environment, nvml, open_report, silent_report
from trainer4090.report.console import Console
from trainer4090.report.flops import model_flops
from trainer4090.report.metrics import Metrics, line
from trainer4090.report.speed import Window, implausible, speed_values, summarize
from trainer4090.report.timing import Deferred, elapsed_ms, mark

REPOSITORY = Path(__file__).parents[1]
RTX_4090 = card.load(REPOSITORY / "conf" / "card" / "rtx4090.yaml")
CPU = torch.device("cpu")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row, parse_constant=pytest.fail) for row in path.read_text().splitlines()]


# metrics.jsonl


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({"train/loss": 0.5}, {"train/loss": 0.5}, id="finite"),
        pytest.param(
            {"train/loss": math.nan, "train/lr": 0.1},
            {"train/loss": None, "train/lr": 0.1, "non_finite": {"train/loss": "nan"}},
            id="nan",
        ),
        pytest.param({"a": -math.inf}, {"a": None, "non_finite": {"a": "-inf"}}, id="infinite"),
        pytest.param({}, {}, id="nothing"),
    ],
)
def test_a_line_is_valid_json_and_shows_what_was_not_finite(values: dict[str, float], expected: dict[str, Any]) -> None:
    assert json.loads(line(7, values), parse_constant=pytest.fail) == {"step": 7, **expected}


WHOLE = "".join(f'{{"step": {step}, "train/loss": 1.0}}\n' for step in range(1, 16))


@pytest.mark.parametrize(
    ("content", "start_step", "kept", "num_dropped"),
    [
        pytest.param(WHOLE, 10, list(range(1, 11)), 5, id="killed at 15, resumed from 10"),
        pytest.param(WHOLE, 15, list(range(1, 16)), 0, id="nothing to cut"),
        pytest.param(WHOLE + '{"step": 16, "tra', 15, list(range(1, 16)), 1, id="torn line"),
        pytest.param(WHOLE + '{"step": 3}', 15, list(range(1, 16)), 1, id="torn before its end of line"),
        pytest.param(WHOLE + "\0\0\0\n[1]\n{}\n", 15, list(range(1, 16)), 3, id="not ours"),
        pytest.param('{"step": 0}\n' + WHOLE, 0, [], 16, id="starts afresh"),
        pytest.param("", 10, [], 0, id="empty"),
        pytest.param(None, 10, [], 0, id="no file"),
    ],
)
def test_metrics_are_cut_back_to_the_resumed_step(
    tmp_path: Path, content: str | None, start_step: int, kept: list[int], num_dropped: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    metrics = Metrics(path, start_step)
    metrics.write(99, {"train/loss": 2.0})
    metrics.close({})
    assert [record["step"] for record in read_lines(path)] == [*kept, 99]
    assert metrics.num_dropped == num_dropped
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_metrics_survive_kill_9(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib\nfrom trainer4090.report.metrics import Metrics\n"
        "metrics = Metrics(pathlib.Path(sys.argv[1]), 0)\n"
        "for step in range(1, 6): metrics.write(step, {'train/loss': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "metrics.jsonl"
    assert subprocess.run([sys.executable, "-c", code, str(path)], cwd=REPOSITORY, check=False).returncode == -9
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3, 4, 5]


def fill_disk(path: Path) -> None:
    """Makes every write to the open file `path` fail as on a full disk."""
    full = os.open("/dev/full", os.O_WRONLY)
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.is_symlink() and os.readlink(descriptor) == str(path):
            os.dup2(full, int(descriptor.name))
    os.close(full)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", ["metrics.jsonl", "train.log"])
def test_a_full_disk_ends_the_run_with_exit_9(tmp_path: Path, name: str) -> None:
    report = open_report(tmp_path, 0, 10, {}, {}, live=False)
    fill_disk(tmp_path / name)
    with pytest.raises(RunFolderError, match=f"{name}: No space left") as caught:
        report.write(1, {"train/loss": 1.0})
    assert caught.value.exit_code == 9
    report.close({})


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.log"])
def test_an_unwritable_file_is_an_error_of_the_run_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(RunFolderError, match=name):
        open_report(tmp_path, 0, 10, {}, {}, live=False)


def test_logging_is_cheap(tmp_path: Path) -> None:
    values = {f"train/value_{index}": index * 1.2345 for index in range(12)}
    report = open_report(tmp_path, 0, 10**6, {}, {}, live=False)
    times_us = []
    for step in range(1, 501):
        start = time.perf_counter()
        report.write(step, values)
        times_us.append((time.perf_counter() - start) * 1e6)
    report.close({})
    # About 70 us when alone; the margin is for a busy machine.
    assert statistics.median(times_us) < 150 * 2


# Reporter


class Recorder:
    def __init__(self, fails: bool) -> None:
        self.fails, self.closed = fails, 0

    def write(self, step: int, values: Any) -> None:
        raise AssertionError("not used")

    def close(self, final: Any) -> None:
        self.closed += 1
        if self.fails:
            raise RunFolderError


def test_close_reaches_every_sink_once_even_when_one_fails() -> None:
    sinks = [Recorder(fails=True), Recorder(fails=False)]
    report = Reporter(sinks, print)
    with pytest.raises(RunFolderError):
        report.close({})
    report.close({})
    assert [sink.closed for sink in sinks] == [1, 1]
    with pytest.raises(ValueError, match="closed"):
        report.write(1, {})


def test_silent_report_writes_nothing(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    report = silent_report()
    report.write(1, {"train/loss": 1.0})
    report.notice("nothing")
    report.close({})
    assert os.listdir(tmp_path) == [] and capsys.readouterr().out == ""


def test_importing_the_package_is_light() -> None:
    code = "import trainer4090.report, sys; print({'torch', 'tensorboard', 'rich', 'pynvml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


def log_texts(path: Path) -> list[str]:
    return [row.split(" ", 1)[1] for row in path.read_text().splitlines()]


def test_plain_lines_are_throttled_and_tell_every_value(tmp_path: Path) -> None:
    now = itertools.count(100.0, 0.5)
    stream = io.StringIO()
    console = Console(tmp_path / "train.log", 0, 100, live=True, stream=stream, clock=lambda: next(now))
    for step in range(1, 9):
        values = {"train/loss": 1 / step, "train/lr": 0.1}
        console.write(step, values | ({"eval/accuracy": 0.75} if step == 2 else {}))
    console.notice("something [odd]")
    console.close({})
    console_lines = stream.getvalue().splitlines()
    assert console_lines == [
        "step 1/100, loss 1",
        "step 5/100, loss 0.2, eval accuracy 0.7500, 0:00:48 left",
        "something [odd]",
        "step 8/100, loss 0.125, 0:00:53 left",
    ]
    assert log_texts(tmp_path / "train.log") == console_lines


def test_a_terminal_gets_a_bar_and_the_log_gets_lines(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    console = Console(tmp_path / "train.log", 0, 20, live=True, stream=stream)
    for step in range(1, 21):
        evaluation = {"eval/loss": 2.0, "eval/accuracy": 0.25} if step == 7 else {}
        console.write(step, {"train/loss": 0.5, "speed/items_per_s": 1234.5} | evaluation)
    console.notice("look [here]")
    console.close({})
    shown = stream.getvalue()
    assert "step 20/20" in shown and "1,234.5 items/s" in shown and "look [here]" in shown
    assert "step 7/20, eval loss 2, eval accuracy 0.2500\n" in shown.replace("\r", "")  # stands above the bar
    assert shown.count("loss 0.5") <= 6  # 20 log points within a tenth of a second are not 20 drawings
    assert log_texts(tmp_path / "train.log")[-1].startswith("step 20/20, loss 0.5")


def test_no_bar_unless_asked_for(tmp_path: Path) -> None:
    stream = Terminal()
    console = Console(tmp_path / "train.log", 0, 20, live=False, stream=stream)
    console.write(1, {"train/loss": 0.5})
    console.close({})
    assert stream.getvalue() == "step 1/20, loss 0.5\n"


def test_a_closed_pipe_does_not_end_the_run(tmp_path: Path) -> None:
    console = Console(tmp_path / "train.log", 0, 2, live=False, stream=Gone(), clock=itertools.count(0, 5).__next__)
    for step in (1, 2):
        console.write(step, {"train/loss": 0.5})
    console.close({})
    assert log_texts(tmp_path / "train.log") == [
        "nothing is shown any more: BrokenPipeError: nobody reads",
        "step 1/2, loss 0.5",
        "step 2/2, loss 0.5, 0:00:00 left",
    ]


# NVML


class NvmlError(Exception):
    pass


class NotSupportedError(NvmlError):
    pass


class UnknownError(NvmlError):
    pass


def fake_nvml(**overrides: Any) -> Any:
    """A pynvml whose functions return a reading, or raise what is given by name."""

    def function(name: str, value: Any) -> Any:
        def call(*arguments: Any) -> Any:
            module.calls.append(name)
            outcome = overrides.get(name, value)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return call

    readings = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        "nvmlDeviceGetPowerUsage": 431_500,
        "nvmlDeviceGetTemperature": 64,
        "nvmlDeviceGetClockInfo": 2520,
    }
    module = SimpleNamespace(calls=[], NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1, NVMLError=NvmlError)
    for name, value in readings.items():
        if overrides.get(name) != "missing":
            setattr(module, name, function(name, value))
    return module


ALL = {"gpu/utilization": 97.0, "gpu/power_w": 431.5, "gpu/temperature_c": 64.0, "gpu/sm_clock_mhz": 2520.0}


def without(*tags: str) -> dict[str, float]:
    return {tag: value for tag, value in ALL.items() if tag not in tags}


@pytest.mark.parametrize(
    ("overrides", "expected", "num_notices"),
    [
        pytest.param({}, ALL, 0, id="all known"),
        pytest.param({"nvmlDeviceGetUtilizationRates": NotSupportedError()}, without("gpu/utilization"), 1, id="MIG"),
        pytest.param({"nvmlDeviceGetUtilizationRates": UnknownError()}, without("gpu/utilization"), 1, id="WSL"),
        pytest.param(
            {"nvmlDeviceGetPowerUsage": NotSupportedError(), "nvmlDeviceGetTemperature": UnknownError()},
            without("gpu/power_w", "gpu/temperature_c"),
            2,
            id="two fail",
        ),
        pytest.param({"nvmlDeviceGetClockInfo": "missing"}, without("gpu/sm_clock_mhz"), 1, id="look-alike module"),
        pytest.param({"nvmlInit": NvmlError("Driver Not Loaded")}, {}, 1, id="no driver"),
        pytest.param({"nvmlInit": "missing"}, {}, 1, id="another module"),
        pytest.param({"nvmlDeviceGetHandleByUUID": NvmlError("Not Found")}, {}, 1, id="other container"),
    ],
)
def test_each_reading_fails_on_its_own(overrides: dict[str, Any], expected: dict[str, float], num_notices: int) -> None:
    notices: list[str] = []
    sampler = nvml.open_sampler("GPU-1", notices.append, fake_nvml(**overrides), itertools.count(0, 2).__next__)
    for _ in range(3):
        assert sampler.values() == expected
    sampler.close()
    sampler.close()
    assert len(notices) == num_notices and sampler.values() == {}


def test_nvml_is_asked_once_a_second_and_shut_down_once() -> None:
    module, now = fake_nvml(), [0.0]
    sampler = nvml.open_sampler("1234", pytest.fail, module, lambda: now[0])
    for seconds in (0.0, 0.5, 0.99, 1.0, 1.5):
        now[0] = seconds
        assert sampler.values() == ALL
    sampler.close()
    sampler.close()
    assert module.calls.count("nvmlDeviceGetPowerUsage") == 2
    assert module.calls.count("nvmlShutdown") == 1


def test_a_cpu_run_does_not_touch_nvml(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.open_sampler(None, pytest.fail).values() == {}
    notices: list[str] = []
    assert nvml.open_sampler("GPU-1", notices.append).values() == {}  # no module at all
    assert len(notices) == 1 and nvml.describe() == {}


# Timing and speed


def test_windows_add_up_to_the_wall_time_and_speed_is_plausible() -> None:
    marks, start = [mark(CPU)], time.perf_counter()
    for _ in range(5):
        for _ in range(4):
            time.sleep(0.01)
        marks.append(mark(CPU))
    wall_ms = (time.perf_counter() - start) * 1000
    windows = [Window(4, 32, elapsed_ms(*pair), 0.0, False) for pair in itertools.pairwise(marks)]
    assert sum(window.elapsed_ms for window in windows) == pytest.approx(wall_ms, rel=0.02)
    summary = summarize(windows)
    assert summary.items_per_s is not None and summary.items_per_s <= 800
    assert summary.items_per_s * wall_ms / 1000 == pytest.approx(5 * 32, rel=0.02)
    assert all(speed_values(window)["speed/items_per_s"] <= 800 for window in windows)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        pytest.param(
            Window(10, 320, 100.0, 0.025, False),
            {"speed/items_per_s": 3200.0, "speed/step_time_ms": 10.0, "speed/data_wait_fraction": 0.25},
            id="steady",
        ),
        pytest.param(
            Window(1, 1, 10.0, 1.0, False),
            {"speed/items_per_s": 100.0, "speed/step_time_ms": 10.0, "speed/data_wait_fraction": 1.0},
            id="wait outlasts the window",
        ),
        pytest.param(Window(10, 320, 100.0, 0.0, True), {}, id="warm-up"),
        pytest.param(Window(0, 0, 100.0, 0.0, False), {}, id="no updates"),
    ],
)
def test_speed_of_a_window(window: Window, expected: dict[str, float]) -> None:
    assert speed_values(window) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        pytest.param([Window(1, 8, 5000.0, 0, True), Window(4, 32, 40.0, 0, False)], (800.0, 10.0), id="warm-up apart"),
        pytest.param(
            [Window(1, 8, 30.0, 0, False), Window(9, 72, 90.0, 0, False), Window(1, 8, 40.0, 0, False)],
            (88 / 0.160, 10.0),
            id="median counts updates",
        ),
        pytest.param([Window(5, 40, 50.0, 0, True)], (None, None), id="only warm-up"),
        pytest.param([], (None, None), id="nothing"),
    ],
)
def test_speed_of_a_run(windows: list[Window], expected: tuple[float | None, float | None]) -> None:
    summary = summarize(windows)
    assert (summary.items_per_s, summary.step_time_ms) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("device_name", "dtype", "num_cards", "tflops", "mfu"),
    [
        pytest.param("NVIDIA GeForce RTX 4090", "float16", 1, 50.0, 0.303, id="4090 fp16"),
        pytest.param("NVIDIA GeForce RTX 4090", "bfloat16", 1, 50.0, 0.303, id="4090 bf16"),
        pytest.param("NVIDIA GeForce RTX 4090", "bfloat16", 2, 100.0, 0.303, id="two 4090"),
        pytest.param("NVIDIA GeForce RTX 4090", "tf32", 1, 41.3, 0.5, id="4090 tf32"),
        pytest.param("NVIDIA GeForce RTX 4090", "float32", 1, 41.3, 0.5, id="4090 fp32"),
        pytest.param("NVIDIA GeForce RTX 4090 D", "float16", 1, 50.0, None, id="4090 D"),
        pytest.param("NVIDIA GeForce RTX 4090 Laptop GPU", "float16", 1, 50.0, None, id="4090 laptop"),
        pytest.param("NVIDIA A100-SXM4-80GB", "float16", 1, 50.0, None, id="A100"),
        pytest.param("Foo", "float16", 1, 50.0, None, id="unknown"),
    ],
)
def test_mfu_is_of_exactly_this_card(
    device_name: str, dtype: card.Dtype, num_cards: int, tflops: float, mfu: float | None
) -> None:
    present = card.Present(0, "GPU-1", device_name, "8.9", memory_mib=24564, free_mib=24000)
    peak = card.identify(present, [RTX_4090]).peak_tflops(dtype)
    window = Window(10, 10, 1000.0, 0.0, False)
    values = speed_values(window, tflops * 1e12 * 0.1, None if peak is None else peak * num_cards)
    assert values["speed/tflops"] == pytest.approx(tflops)
    assert values.get("speed/mfu") == (None if mfu is None else pytest.approx(mfu, abs=5e-4))
    assert implausible(values) is None


def test_more_than_the_peak_is_noticed() -> None:
    values = speed_values(Window(1, 1, 1000.0, 0.0, False), 104e12, 100.0)
    assert "speed/mfu is 1.04" in str(implausible(values))


@pytest.mark.parametrize(
    "dtypes", [pytest.param((torch.float32, torch.int64, torch.bool), id="mixed"), pytest.param((), id="none")]
)
def test_deferred_values_are_those_of_the_moment(dtypes: tuple[torch.dtype, ...]) -> None:
    scalars = [torch.ones((), dtype=dtype, requires_grad=dtype.is_floating_point) for dtype in dtypes]
    deferred = Deferred(scalars)
    for scalar in scalars:
        scalar.detach().zero_()
    assert deferred.read() == [1.0] * len(scalars)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_marks_and_copies_do_not_synchronise() -> None:
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):  # the first round loads kernels and allocates pinned memory, which may wait
            start, begun = mark(device), time.perf_counter()
            product = matrix
            for _ in range(50):
                product = matrix @ matrix
            value = product.sum()
            expected = value.clone()
            deferred, end = Deferred([value, torch.ones((), device=device)]), mark(device)
            value.zero_()
            submitted_ms, window_ms = (time.perf_counter() - begun) * 1000, elapsed_ms(start, end)
            values = deferred.read()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert submitted_ms < window_ms / 2
    assert values == [float(expected), 1.0]


# FLOPs


def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def mlp(width: int = 512) -> nn.Module:
    layers = (nn.Linear(784, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, 10))


MLP_FORWARD = 2 * 256 * (784 * 512 + 512 * 512 + 512 * 10)
FIRST_LAYER = 2 * 256 * 784 * 512


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        pytest.param((), 3 * MLP_FORWARD - FIRST_LAYER, id="all trained"),
        pytest.param(("0.", "3."), MLP_FORWARD + 2 * 256 * 512 * 10, id="frozen backbone"),
        pytest.param(("0.", "3.", "5."), MLP_FORWARD, id="all frozen"),
    ],
)
def test_flops_of_an_mlp(frozen: tuple[str, ...], expected: int) -> None:
    module = mlp()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    batch = Batch(torch.zeros(256, 784), torch.zeros(256, dtype=torch.long), 256)
    random_state = torch.get_rng_state()
    assert model_flops(module, batch, total, pytest.fail) == expected
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_flops_of_resnet50_leave_its_buffers_alone() -> None:
    models = pytest.importorskip("torchvision.models")
    module = models.resnet50()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    batch = Batch(torch.empty(2, 3, 224, 224, device="meta"), torch.empty(2, dtype=torch.long, device="meta"), 2)
    flops = model_flops(module, batch, total, pytest.fail)
    stem = 2 * 2 * 112 * 112 * 64 * 3 * 49  # the images need no gradient
    assert flops == pytest.approx(3 * 2 * 2 * 4.089e9 - stem, rel=1e-3)
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_a_model_that_needs_values_has_no_flops() -> None:
    class Peeks(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * float(inputs.sum())

    notices: list[str] = []
    batch = Batch(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), 2)
    assert model_flops(Peeks(), batch, total, notices.append) is None
    assert len(notices) == 1 and "speed/mfu" in notices[0]


# Files


def test_json_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    disk.write_json(path, {"status": "ok", "eval": {"loss": math.nan, "steps": (1, 2)}})
    expected = {"status": "ok", "eval": {"loss": None, "steps": [1, 2]}}
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == expected
    with pytest.raises(TypeError):
        disk.write_json(path, {"status": object()})
    with pytest.raises(ZeroDivisionError), disk.replacing(path) as file:
        file.write(b"{")
        raise ZeroDivisionError
    assert json.loads(path.read_text()) == expected
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_folder_that_is_not_there_is_an_error_of_the_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="No such file"):
        disk.write_json(tmp_path / "missing" / "result.json", {})


def test_environment_knows_versions_and_the_checkout_of_the_working_directory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    tree = environment.environment()
    assert (
        tree["packages"]["torch"] == torch.__version__.split("+")[0] or tree["packages"]["torch"] == torch.__version__
    )
    assert "git" not in tree
    (tmp_path / "a.txt").write_text("one\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run(["git", *identity, *command], check=True)
    (tmp_path / "a.txt").write_text("two\n")
    state = environment.environment()["git"]
    assert len(state["commit"]) == 40 and "-one\n+two" in state["diff"]
    json.dumps(tree)


@pytest.mark.parametrize(
    "failure",
    [pytest.param(FileNotFoundError(), id="no git"), pytest.param(subprocess.TimeoutExpired("git", 5), id="too slow")],
)
def test_environment_without_git(monkeypatch: Any, failure: Exception) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise failure

    monkeypatch.setattr(subprocess, "run", fail)
    assert "git" not in environment.environment()
