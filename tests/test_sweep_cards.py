"""Sweeps on several cards: a job a card, each sees its own, and none waits for a card that is free."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from itertools import combinations
from pathlib import Path

import pytest
from test_sweep import TINY, fake_jobs, rows, statuses, until

from trainer4090 import device
from trainer4090.__main__ import main
from trainer4090.card import Present
from trainer4090.sweeps.cards import Cards

WORDS = tuple(word for word in TINY if not word.startswith("device"))
TWO = [
    Present(1, "GPU-b", "NVIDIA GeForce RTX 3060", "8.6", 12_288, 12_000),
    Present(0, "GPU-a", "NVIDIA GeForce RTX 4090", "8.9", 24_564, 24_000),
]
RECORD = (
    "begin = time.time(); open('started', 'w').close()\n"
    "{waits}\n"
    "json.dump([os.environ.get('CUDA_VISIBLE_DEVICES'), begin, time.time()], open('seen.json', 'w'))\n"
    "done('ok', 0)"
)
WAIT_FOR = (
    "end = time.time() + 30\n"
    "while not os.path.exists('../{job}/started'):\n"
    "    assert time.time() < end, 'the other never ran'\n"
    "    time.sleep(0.01)"
)


@pytest.fixture(autouse=True)
def _two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.cards, "present_gpus", lambda: TWO)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def seen(job: int) -> tuple[str, float, float]:
    return tuple(json.loads(Path(f"sweep/{job}/seen.json").read_text()))


def test_two_jobs_run_at_once_and_each_sees_its_own_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = [WAIT_FOR.format(job=1), WAIT_FOR.format(job=0), "time.sleep(0.2)", "time.sleep(0.2)", ""]
    fake_jobs(monkeypatch, *(RECORD.format(waits=each) for each in waits))
    assert main(["-m", "train.seed=range(5)", *WORDS]) == 0
    assert [row["job"] for row in rows()] == [0, 1, 2, 3, 4] and statuses() == ["ok"] * 5
    records = [seen(job) for job in range(5)]
    assert [record[0] for record in records[:2]] == ["GPU-a", "GPU-b"]
    assert {record[0] for record in records} == {"GPU-a", "GPU-b"}
    for (card, begin, end), (other, began, ended) in combinations(records, 2):
        assert card != other or end <= began or ended <= begin, "two jobs on one card"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("[job 0]"))
    assert first.endswith(" on cuda:0")


def test_the_plan_of_a_job_is_that_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jobs(monkeypatch, *(RECORD.format(waits=WAIT_FOR.format(job=job)) for job in (1, 0)))
    assert main(["-m", "train.seed=1,2", *WORDS]) == 0
    for job, gpu in enumerate(sorted(TWO, key=lambda gpu: gpu.index)):
        assert seen(job)[0] == gpu.uuid
        assert Path(f"sweep/{job}/plan.txt").read_text().startswith(f"plan for {gpu.device_name} ")


def test_jobs_of_the_processor_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jobs(monkeypatch, *[RECORD.format(waits="time.sleep(0.2)")] * 2)
    assert main(["-m", "train.seed=1,2", "device=cpu", *WORDS]) == 0
    (card, _, ended), (_, began, _) = seen(0), seen(1)
    assert card is None and ended <= began


def test_a_signal_reaches_all_that_run_and_no_other_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = "signal.signal(signal.SIGINT, lambda *given: done('interrupted', 130, problems=['saved']))\n"
    fake_jobs(monkeypatch, *[f"{saves}open('started', 'w').close()\ntime.sleep(60)"] * 3)

    def interrupt() -> None:
        until(lambda: all(Path(f"sweep/{job}/started").exists() for job in (0, 1)))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begun = time.monotonic()
    assert main(["-m", "train.seed=1,2,3", *WORDS]) == 130
    thread.join()
    assert time.monotonic() - begun < 50
    assert statuses() == ["interrupted"] * 3 and "not started" in rows()[2]["reason"]
    assert not Path("sweep/2").exists()


def test_a_job_of_several_ranks_has_the_sweep_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jobs(monkeypatch, *[RECORD.format(waits="time.sleep(0.2)")] * 3)
    assert main(["-m", "parallelism=single,ddp,single", *WORDS]) == 0
    (first, _, ended), (cards, begin, end), (_, began, _) = (seen(job) for job in range(3))
    assert (first, cards) == ("GPU-a", "GPU-a,GPU-b") and ended <= begin and end <= began


@pytest.mark.parametrize(
    ("taken", "wish", "expected"),
    [
        ([], ("auto", 1), ("GPU-a",)),
        ([("auto", 1)], ("cuda", 1), ("GPU-b",)),
        ([], ("auto", 2), ("GPU-a", "GPU-b")),
        ([("auto", 1)], ("cuda:1", 1), ("GPU-b",)),
        ([("auto", 2)], ("cpu", 1), ("cpu",)),
        ([("auto", 2)], ("auto", 3), ()),
        ([("auto", 2)], ("cuda:2", 1), ()),
    ],
)
def test_what_a_job_gets(taken: list[tuple[str, int]], wish: tuple[str, int], expected: tuple[str, ...]) -> None:
    cards = Cards(TWO)
    for earlier in taken:
        cards.take(*earlier)
    assert cards.take(*wish) == expected


@pytest.mark.parametrize("wish", [("auto", 2), ("cuda:0", 1)])
def test_a_job_waits_for_its_cards(wish: tuple[str, int]) -> None:
    cards, got = Cards(TWO), []
    places = cards.take("auto", 1)
    waiting = threading.Thread(target=lambda: got.append(cards.take(*wish)), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert not got
    cards.give(places)
    waiting.join(10)
    assert got == [("GPU-a", "GPU-b")[: wish[1]]]


@pytest.mark.parametrize(
    ("present", "wish", "visible"),
    [
        (TWO, "cuda:1", None),  # counts the cards that are there
        (TWO[:1], "auto", None),
        ([], "auto", None),
        (TWO, "cpu", None),
    ],
)
def test_nothing_is_hidden_without_need(present: list[Present], wish: str, visible: str | None) -> None:
    cards = Cards(present)
    with cards.only(wish, cards.take(wish, 1)) as environment:
        assert environment.get("CUDA_VISIBLE_DEVICES") == visible
