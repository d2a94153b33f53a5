"""A plugin that breaks the contract: exit 2, one line that names the file, the line, and what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_plugins import CASES, Broken
from plugin_files import RUN, SOUND, isolated, line_of

from trainer4090.__main__ import main

FORM = re.compile(r"trainer4090: error: [^;]+: [^;]*; .+")
LONGEST = 480


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated():
        yield


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(words) == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_broken_plugin(case: Broken, capsys: pytest.CaptureFixture[str]) -> None:
    assert case.old in SOUND
    Path("mine.py").write_text(SOUND.replace(case.old, case.new, 1), encoding="utf-8")
    found = lines(capsys, *RUN, *case.words)
    assert len(found) == 1 and FORM.fullmatch(found[0]) and len(found[0]) <= LONGEST, found
    given, _, remedy = found[0].removeprefix(f"trainer4090: error: {case.key}: ").partition("; ")
    assert not given.startswith("trainer4090"), found
    assert case.given in given and case.remedy in remedy, found


@pytest.mark.parametrize(
    ("word", "given", "remedy"),
    [
        ("plugin=./mien.py", "plugin: ./mien.py does not exist", "did you mean plugin=./mine.py?"),
        ("plugin=sub/zzz.py", "plugin: sub/zzz.py does not exist", "a path counts from"),
        ("plugin=./sub/", "plugin: ./sub/ is a folder", "plugin=./sub/FILE.py"),
        ("plugin=minee", "plugin: there is no module minee", "a module that Python finds"),
        ("plugin=sub.nett", "plugin: there is no module sub.nett", "a module that Python finds"),
        ("plugin=sub.net", "sub/net.py:1: ModuleNotFoundError: No module named 'nothing'", "correct the plugin"),
        ("plugin=sub", "plugin: there is no module sub", "a module that Python finds"),
        ("plugin=torch.nothing", "plugin: there is no module torch.nothing", "a module that Python finds"),
        ("plugin=a-b", "plugin: 'a-b' is neither a file nor a module", "plugin=./mine.py"),
        ("plugin=5", "plugin: 5", "a file (./mine.py), a module"),
        ("plugin=[./mine.py,5]", "plugin: ['./mine.py', 5]", "a file (./mine.py)"),
        ("plugin=[./mine.py,./mine.py]", "plugin: ./mine.py stands twice", "name it once"),
        ("plugin=./mine.py,sub", "plugin: is a sweep", "type plugin=[./mine.py,sub]"),
        ("plugin=", "plugin: ''", "a file (./mine.py)"),
        ("plugin=./binary.py", "./binary.py: ", "a file of Python"),
        ("plugin=./latin.py", "./latin.py:", ""),
        ("+plugin=./mine.py", "plugin: ./mine.py is not loaded", "type plugin=./mine.py"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [[], ["list", "model"]], ids=["train", "list"])
def test_a_word_that_leads_nowhere(
    word: str, given: str, remedy: str, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sub").mkdir()
    Path("sub/net.py").write_text("import nothing")
    Path("mine.py").write_text(SOUND, encoding="utf-8")
    Path("binary.py").write_bytes(b"a = 1\0")
    Path("latin.py").write_bytes("a = 'é'".encode("latin-1"))
    if word.startswith("+") and verb:
        pytest.skip("list takes groups")
    found = lines(capsys, *verb, word)
    assert len(found) == 1 and FORM.fullmatch(found[0]), found
    assert found[0].startswith(f"trainer4090: error: {given}") and remedy in found[0], found


def test_two_words_are_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "plugin=./a.py", "plugin=[b.c]")
    assert found == ["trainer4090: error: plugin: stands twice; several are one list: type plugin=[./a.py,b.c]"]


def test_all_problems_of_a_file_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    broken = SOUND.replace("width: int = 8", "width = 8").replace("def margin(config, data)", "def margin(config)")
    Path("mine.py").write_text(broken.replace("    num_workers: int = 0\n", ""))
    assert len(lines(capsys, *RUN)) == 3


def test_a_broken_plugin_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(f"{SOUND}\n1 / 0\n")
    assert "ZeroDivisionError" in lines(capsys, "plugin=./mine.py")[0]
    assert "unknown option 'net'" in lines(capsys, "model=net")[0]
    Path("mine.py").write_text(SOUND)
    assert main(["--cfg", "job", "plugin=./mine.py", "model=net"]) == 0


def test_the_traceback_is_under_debug(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def f():\n    raise OSError('gone')\n\n\nf()\n")
    assert len(lines(capsys, "plugin=./mine.py")) == 1
    found = lines(capsys, "plugin=./mine.py", "debug=true")
    assert found[0].startswith("Traceback") and found[-1].startswith("trainer4090: error: ./mine.py:2: OSError: gone; ")


def test_an_error_beside_the_plugin_names_that_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("import beside_it\n")
    Path("beside_it.py").write_text("\nx = [][1]\n")
    assert lines(capsys, "plugin=./mine.py")[0].startswith("trainer4090: error: beside_it.py:2: IndexError: ")


@pytest.mark.parametrize("workers", [0, 2], ids=["here", "workers"])
def test_an_error_while_training_names_the_line(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    broken = SOUND.replace(
        "        return self.points[indices], self",
        "        assert epoch < 1\n        return self.points[indices], self",
    )
    Path("mine.py").write_text(broken)
    found = lines(capsys, *RUN, f"data.num_workers={workers}")
    assert found == [
        f"trainer4090: error: {line_of('assert epoch', broken)}: AssertionError; "
        "correct the plugin (debug=true prints the traceback)"
    ]
    assert "AssertionError" in Path("run/result.json").read_text()
