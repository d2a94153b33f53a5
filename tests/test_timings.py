"""Keys that say `measure`: what is taken, what the plan says, what is cached, and how a measurement ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import plan_of, python_path

from trainer4090 import card, device, timings
from trainer4090.__main__ import main
from trainer4090.ablation import kept, measure
from trainer4090.card import CPU
from trainer4090.composition import compose
from trainer4090.errors import ConfigError
from trainer4090.parse import load, parse
from trainer4090.timings import Candidate, Timing

KEY = "kernels.fused.channels_last"
TINY = (
    "device=cpu", "model=cnn", "model.width=4", "kernels=fused", "kernels.fused.compile=false", "train.epochs=null",
    "train.steps=2", "schedule=constant", "ablate.repeats=2", "ablate.seconds=0", "ablate.steps=4", "ablate.warm_up=3",
    "train.log_every=2",
)  # fmt: skip
ASKED = (*TINY, f"{KEY}=measure")


def tried(value: bool | str, *rates: float, status: str = "ok") -> Candidate:
    return Candidate(value, status, "" if status == "ok" else "an error", rates)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where timings are cached."""
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "timings"


@pytest.mark.parametrize(
    ("candidates", "taken"),
    [
        ([tried("a", 100, 102), tried("b", 110, 112)], "b"),
        ([tried("a", 100, 102), tried("b", 80, 82)], "a"),
        ([tried("a", 100, 100), tried("b", 100, 100)], "a"),
        ([tried("a", 100, 120), tried("b", 112, 114)], "a"),
        ([tried("a", 100, 100), tried("b", 90, 130)], "a"),
        ([tried("a", 100, 101), tried("b", 105, 175), tried("c", 120, 121)], "c"),
        ([tried("a", 100, 101), tried("b", 120, 121), tried("c", 120, 121)], "b"),
        ([tried("a", status="oom"), tried("b", 50, 90)], "b"),
        ([tried("a", 100, 100), tried("b", 200, status="timeout")], "a"),
        ([tried("a", status="killed"), tried("b", 10, 10), tried("c", 11, 11)], "c"),
        ([tried("a", status="oom"), tried("b", status="failed")], None),
        ([tried("a"), tried("b", 1, 1)], "b"),
        ([tried("a", 5)], "a"),
    ],
    ids=[
        "faster", "slower", "equal", "within-the-spread", "within-its-own-spread", "steady-beside-unsteady",
        "two-equal", "first-failed", "failed-later", "first-failed-of-three", "all-failed", "first-without-speed",
        "alone",
    ],
)  # fmt: skip
def test_what_is_taken(candidates: list[Candidate], taken: str | None) -> None:
    found = timings.decide(candidates)
    assert (None if found is None else found.value) == taken


@pytest.mark.parametrize(
    ("value", "candidates", "origin", "line"),
    [
        (True, [tried(False, 1010, 1010), tried(True, 1229, 1239)], "now",
         "k: true, measured 1,234 against 1,010 items/s of false (spread 0.8%)"),
        (False, [tried(False, 90, 110), tried(True, 101, 101)], "cache",
         "k: false, measured 100 against 101 items/s of true (spread 20.0%), cached 2026-12-01"),
        ("c", [tried("a", 10, 10), tried("b", 15, 15), tried("c", 20, 20)], "run",
         "k: c, measured 20 against 10 items/s of a (spread 0.0%), as this run began on 2026-12-01"),
        ("a", [tried("a", 10.5), tried("b", status="oom"), tried("c", status="timeout"), tried("d", status="refused")],
         "now", "k: a, measured 10.5 items/s; b ran out of memory; c took too long; d is refused"),
        ("b", [tried("a", status="failed"), tried("b", 7, 7)], "now", "k: b, measured 7 items/s; a failed (an error)"),
    ],
    ids=["won", "stayed", "of-three", "others-failed", "first-failed"],
)  # fmt: skip
def test_what_the_plan_says(value: Any, candidates: list[Candidate], origin: Any, line: str) -> None:
    timing = Timing("k", value, tuple(candidates), "cpu", "2026-12-01", origin)
    assert str(timing) == line
    assert timings.of_text(timings.as_text([timing])) == (timing,)


@pytest.mark.parametrize(
    ("words", "card_name", "expected"),
    [
        (["kernels=fused", "model=cnn"], "cpu", {"channels_last": 2, "cudnn_benchmark": 1, "mode": 2}),
        (["kernels=fused", "model=cnn"], "rtx4090", {"channels_last": 2, "cudnn_benchmark": 2, "mode": 3}),
        (["kernels=fused", "kernels.fused.compile=false"], "rtx4090", {"mode": 1}),
        (["kernels=fused", "model=gpt_tiny", "data=text"], "rtx4090", {"channels_last": 1, "cudnn_benchmark": 1}),
        (["kernels=sdpa", "model=gpt_tiny", "data=text"], "rtx4090", {"backend": 5}),
        (["kernels=sdpa", "model=gpt_tiny", "data=text"], "cpu", {"backend": 3}),
        (["kernels=sdpa", "model=cnn"], "rtx4090", {"backend": 1}),
    ],
    ids=["cpu", "gpu", "not-compiled", "text", "attention", "attention-cpu", "no-attention"],
)
def test_what_is_tried(words: list[str], card_name: str, expected: dict[str, int]) -> None:
    """Number of values by field; where there is only one, the plan says so and nothing is timed."""
    name = words[0].partition("=")[2]
    chosen = CPU if card_name == "cpu" else next(each for each in device.known_cards() if each.name == card_name)
    asked = [f"kernels.{name}.{field}=measure" for field in expected]
    made = plan_of(*words, *asked, card=chosen)
    told = {notice.key: str(notice) for notice in made.notices}
    for field, count in expected.items():
        notice = told[f"kernels.{name}.{field}"]
        assert "asked measure, got " in notice
        assert ("nothing was timed on this card" in notice) == (count > 1)
    plain = plan_of(*words, card=chosen)
    found = timings.asked(made.spec, plan_facts(made))
    assert {key.rpartition(".")[2]: len(values) for key, values in found.items()} == expected
    assert plain.settings == made.settings and len(plain.transforms) == len(made.transforms)


def plan_facts(made: Any) -> Any:
    from trainer4090.plan import facts_of

    return facts_of(made)


# Processes that only pretend to train.


def fake(monkeypatch: pytest.MonkeyPatch, scripts: Mapping[str, str]) -> None:
    """Let the process of a candidate run the script of its value: a rate, or Python."""
    prelude = (
        "import json, os, signal, sys, time\n"
        "open(os.environ['TRAINER4090_CACHE'] + '.count', 'a').write('x')\n"
        "def done(rate):\n"
        "    json.dump({'status': 'ok', 'exit_code': 0, 'steps': 8, 'items_per_s': rate}, open('result.json', 'w'))\n"
        "def end(status, code):\n"
        "    json.dump({'status': status, 'exit_code': code}, open('result.json', 'w'))\n"
        "    print('trainer4090: error: it: went wrong; mend it', file=sys.stderr); sys.exit(code)\n"
    )

    def command(folder: Path) -> list[str]:
        label = folder.parent.name
        script = next(text for start, text in scripts.items() if f"-{start}-" in label)
        return [sys.executable, "-c", f"{prelude}os.chdir({str(folder)!r})\n{script}"]

    monkeypatch.setattr(measure, "command", command)


def processes() -> int:
    """Processes of candidates so far."""
    count = Path(os.environ[kept.VARIABLE] + ".count")
    return len(count.read_text()) if count.is_file() else 0


FASTER = {"true": "done(100.0)", "false": "done(150.0)"}
SLOWER = {"true": "done(100.0)", "false": "done(50.0)"}
WON = f"{KEY}: false, measured 150 against 100 items/s of true (spread 0.0%)"


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *(words or ASKED)]) == 0
    return capsys.readouterr().out


def test_a_run_trains_with_what_is_faster_and_a_resume_keeps_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    fake(monkeypatch, FASTER)
    assert main([*ASKED, "run.dir=out"]) == 0
    plan_text = Path("out/plan.txt").read_text()
    assert WON in plan_text and "channels_last" not in plan_text.replace(KEY, "")
    assert load(Path("out/spec.yaml")).kernels[0].config.channels_last is False
    assert (len(timings.of_folder(Path("out"))), processes()) == (1, 4)
    for file in cache.iterdir():
        file.unlink()
    fake(monkeypatch, SLOWER)
    assert main(["run.dir=out", "resume=last", "train.steps=4"]) == 0
    today = timings.of_folder(Path("out"))[0].date
    assert f"{WON}, as this run began on {today}" in Path("out/plan.txt").read_text()
    assert main(["run.dir=out", "resume=last", "train.steps=6", f"{KEY}=true"]) == 0
    assert "measured" not in Path("out/plan.txt").read_text() and not Path("out/timings.json").exists()
    assert processes() == 4
    capsys.readouterr()


def test_a_damaged_record_of_a_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, FASTER)
    assert main([*ASKED, "run.dir=out"]) == 0
    Path("out/timings.json").write_text("[{}]")
    assert main(["run.dir=out", "resume=last", "train.steps=4"]) == 9
    assert "error: out/timings.json: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ((), 4),
        (("train.seed=3", "optimizer.lr=0.5", "train.steps=9", "train.log_every=4", "run.name=b", "metrics=top1"), 4),
        (("train.batch_size=32",), 8),
        (("train.micro_batch=32",), 8),
        (("model.width=8",), 8),
        (("precision=bf16",), 8),
        (("kernels.fused.optimizer=false",), 8),
        (("ablate.seconds=0.001",), 8),
        (("ema.decay=0.9",), 8),
    ],
    ids=["same", "indifferent", "batch", "micro-batch", "model", "precision", "kernels", "length", "ema"],
)
def test_what_is_cached(
    change: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, FASTER)
    assert WON + "\n" in planned(capsys)
    again = planned(capsys, *ASKED, *change)
    assert processes() == count
    assert (f"{WON}, cached 20" in again) == (count == 4) and WON in again


@pytest.mark.parametrize("other", ["torch", "device", "name"])
def test_what_another_card_or_version_has_measured_is_not_taken(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse(compose(ASKED).tree)
    here = device.Choice(card.CPU, "GPU-1", "")

    def file() -> Path:
        return kept.file_of(spec, KEY, [True, False], here)

    before = file()
    assert file() == before
    if other == "torch":
        monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    elif other == "device":
        here = device.Choice(card.CPU, "GPU-2", "")
    else:
        here = device.Choice(next(each for each in device.known_cards() if each.device == "cuda"), "GPU-1", "")
    assert file() != before


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[{}]", '[{"key": 1}]', "\x00\x01", "null", "[1, 2]"],
    ids=["empty", "cut", "none", "no-fields", "types", "binary", "null", "numbers"],
)
def test_a_damaged_cache_is_told_of_and_measured_anew(
    content: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    fake(monkeypatch, FASTER)
    planned(capsys)
    (file,) = cache.iterdir()
    sound = file.read_text()
    file.write_text(content)
    told = planned(capsys)
    assert "cannot be read" in told and "measured anew" in told and WON + "\n" in told
    assert (file.read_text(), processes()) == (sound, 8)


def test_a_cache_that_cannot_be_written_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    fake(monkeypatch, FASTER)
    cache.parent.write_text("a file where the folder would be")
    told = planned(capsys)
    assert WON in told and "not cached" in told and kept.VARIABLE in told


@pytest.mark.parametrize(
    ("script", "says", "cached"),
    [
        ("end('oom', 6)", "true ran out of memory", 1),
        ("end('failed', 2)", "true is refused", 1),
        ("time.sleep(60)", "true took too long", 1),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "true failed (killed by SIGSEGV)", 0),
        ("end('failed', 1)", "true failed (error: it: went wrong; mend it)", 0),
        ("json.dump({'status': 'ok'}, open('result.json', 'w'))", "true failed (it was too short for a speed)", 0),
    ],
    ids=["oom", "refused", "timeout", "crash", "defect", "no-speed"],
)
def test_a_candidate_that_fails_is_a_result(
    script: str,
    says: str,
    cached: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cache: Path,
) -> None:
    fake(monkeypatch, {"true": script, "false": "done(7.0)"})
    assert f"{KEY}: false, measured 7 items/s; {says}\n" in planned(capsys, *ASKED, "ablate.timeout_s=1")
    assert len(list(cache.glob("*"))) == cached
    assert processes() == (4 if "speed" in says else 3)  # what has failed once is not tried again


@pytest.mark.parametrize(("code", "status"), [(6, "oom"), (2, "failed"), (4, "failed"), (1, "failed")])
def test_the_first_error_is_told_when_all_fail(
    code: int, status: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    fake(monkeypatch, {"true": f"end('{status}', {code})", "false": "end('failed', 3)"})
    assert main([*ASKED, "run.dir=out"]) == code
    errors = capsys.readouterr().err
    assert f"error: {KEY}: measure, and no value of it could be timed" in errors and "it: went wrong" in errors
    assert not cache.exists() and not Path("out/spec.yaml").exists()


def test_keys_are_measured_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second key is timed beside what was taken for the first."""
    seen: list[tuple[str, Any, Any]] = []

    def command(folder: Path) -> list[str]:
        config = load(folder / "spec.yaml").kernels[0].config
        seen.append((folder.parent.name.split("-")[0], config.mode, config.channels_last))
        rate = 100 if config.mode == "default" else 150
        text = json.dumps({"status": "ok", "items_per_s": rate})
        return [sys.executable, "-c", f"open({str(folder / 'result.json')!r}, 'w').write({text!r})"]

    monkeypatch.setattr(measure, "command", command)
    words = [word for word in ASKED if "compile" not in word]
    told = planned(capsys, *words, "kernels.fused.mode=measure")
    assert "kernels.fused.mode: max-autotune-no-cudagraphs, measured 150 against 100" in told
    assert "mode max-autotune-no-cudagraphs" in told
    best = "max-autotune-no-cudagraphs"
    first = [("kernels.fused.mode", mode, True) for mode in ("default", best)]
    assert seen == first * 2 + [(KEY, best, True), (KEY, best, False)] * 2


def test_the_plan_of_a_card_elsewhere_times_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, FASTER)
    told = planned(capsys, *(word for word in ASKED if "device" not in word), "card=rtx4090")
    assert f"{KEY}: asked measure, got true: nothing was timed on this card" in told
    assert processes() == 0


@pytest.mark.full
def test_the_jobs_of_a_sweep_take_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, FASTER)
    assert main(["-m", *ASKED, "run.dir=sweep", "train.seed=1,2"]) == 0
    assert processes() == 4
    for job in ("0", "1"):
        folder = Path("sweep", job)
        assert load(folder / "spec.yaml").kernels[0].config.channels_last is False
        assert WON in (folder / "plan.txt").read_text() and WON in (folder / "train.log").read_text()
    fake(monkeypatch, SLOWER)
    assert main(["run.dir=sweep/0", "resume=last", "train.steps=4"]) == 0
    assert WON in Path("sweep/0/plan.txt").read_text() and processes() == 4
    capsys.readouterr()


def test_an_ablation_measures_its_rows_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", *ASKED]) == 2
    assert f"error: {KEY}: measure; the rows of an ablation" in capsys.readouterr().err
    assert not list(Path.cwd().iterdir())


# Processes that train.


@pytest.mark.parametrize(
    "words",
    [(), pytest.param(("kernels.fused.compile=true", "kernels.fused.backend=aot_eager"), marks=pytest.mark.full)],
)
def test_a_real_measurement(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    plain = [word for word in ASKED if not words or "compile" not in word]
    assert main([*plain, *words, "run.dir=out"]) == 0
    (timing,) = timings.of_folder(Path("out"))
    assert [(each.value, each.status, len(each.items_per_s)) for each in timing.candidates] == [
        (True, "ok", 2),
        (False, "ok", 2),
    ]
    assert f"measured      {timing}" in Path("out/plan.txt").read_text()
    assert json.loads(Path("out/result.json").read_text())["status"] == "ok"
    assert len(list(cache.iterdir())) == 1
    capsys.readouterr()


def alive(folder: Path) -> list[str]:
    """Command lines of processes that work in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        found += [text] if str(folder) in text else []
    return found


@pytest.mark.parametrize(
    ("number", "more"),
    [
        (signal.SIGINT, ()),
        pytest.param(signal.SIGTERM, (), marks=pytest.mark.full),
        pytest.param(signal.SIGINT, ("-m", "train.seed=1,2"), marks=pytest.mark.full),
    ],
    ids=["int", "term", "sweep"],
)
def test_a_signal_leaves_no_process_and_no_entry(
    number: signal.Signals, more: tuple[str, ...], tmp_path: Path, cache: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(scratch)}
    words = [*ASKED, "ablate.seconds=1000", "run.dir=out", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer4090", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not list(scratch.glob("*/*/*/metrics.jsonl")) and time.monotonic() < end:
            time.sleep(0.05)
        assert alive(scratch)
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, errors
    assert f"{number.name}: stopped while {KEY} was measured" in errors
    if more:
        rows = [json.loads(line) for line in Path("out/sweep.jsonl").read_text().splitlines()]
        assert [row["status"] for row in rows] == ["interrupted"] * 2
    # The compiler's cache is torch's, which it keeps there for the next process.
    left = [each for each in scratch.iterdir() if not each.name.startswith("torchinductor_")]
    assert not alive(scratch) and not left
    assert not cache.exists() and not Path("out/spec.yaml").exists()


@pytest.mark.parametrize(
    "words", [["--cfg", "job", *ASKED], ["plan", *ASKED, "train.steps=0"], ["list", "kernels"], ["ablate", *ASKED]]
)
def test_what_answers_at_once_imports_no_torch(words: list[str]) -> None:
    script = f"import sys; from trainer4090.__main__ import main; main({words!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": python_path()}, check=True)


def test_several_ranks_are_not_measured() -> None:
    words = ("model=cnn", "kernels=fused", "kernels.fused.channels_last=measure", "parallelism=ddp", "cards=2")
    with pytest.raises(ConfigError) as caught:
        plan_of(*words)
    (problem,) = caught.value.problems
    assert problem.key == "kernels.fused.channels_last" and "cards=1" in problem.remedy
