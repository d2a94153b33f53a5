"""The documentation names what exists, and what it tells people to type works."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

from trainer4090 import paths
from trainer4090.composition import compose
from trainer4090.parse import parse
from trainer4090.verbs import VERBS, data_prepare_verb, generate_verb, predict_verb
from trainer4090.verbs.options import read_options

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
COMMAND = re.compile(r"^ {4}(?:python -m )?trainer4090 ([^#\n]+)", re.MULTILINE)
COMMANDS = [(page.name, match.strip()) for page in PAGES for match in COMMAND.findall(page.read_text())]


def code_of(page: Path, title: str) -> str:
    """The indented block that begins with `# title`, without its indentation and title."""
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = lines.index(f"    # {title}") + 1
    block = []
    for line in lines[begin:]:
        if line and not line.startswith("    "):
            break
        if line.startswith("    # ") and line.endswith((".py", ".yaml")):
            break
        block.append(line[4:])
    return "\n".join(block).strip() + "\n"


OPTIONS = {
    "predict": predict_verb.Options,
    "generate": generate_verb.Options,
    "data prepare": data_prepare_verb.Options,
}


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page}: {words}" for page, words in COMMANDS])
def test_commands_compose(page: str, words: str) -> None:
    if "plugin=" in words:
        return  # typed with its files by tests/test_plugin_page.py
    given = [word for word in shlex.split(words) if word != "-m"]
    for size in (2, 1):
        verb, rest = " ".join(given[:size]), given[size:]
        if verb not in VERBS:
            continue
        given = rest
        if verb in OPTIONS:
            read_options(given, OPTIONS[verb])
            return
        if verb in ("list", "evaluate"):
            assert all(
                word in paths.groups() or re.fullmatch(r"(run|checkpoint|split|metrics|data\.\w+)=\S+", word)
                for word in given
            )
            return
    sweeps = "-m" in words.split()
    first = re.compile(r",(?![^\[]*\])")  # a comma outside of a list
    swept = [first.split(word)[0] if sweeps else word for word in given if not word.startswith("--")]
    parse(compose(swept).tree)


def test_commands_are_found() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize(
    "group", ["precision", "memory", "kernels", "parallelism", "model", "data", "loss", "metrics", "optimizer"]
)
def test_readme_names_every_option(group: str) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert not [name for name in paths.options(group) if not re.search(rf"[`( \n]{name}[`) \n]", text)]


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_named_files_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:tests|benchmarks|docs)/\w+\.\w+)`", page.read_text(encoding="utf-8")):
            assert (REPOSITORY / name).exists(), f"{page.name}: {name}"


def test_the_example_of_extending_works(tmp_path: Path) -> None:
    """The two files of the page, put where it says, are an option: no other file is touched."""
    for name in ("trainer4090", "conf", "recipes"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    page = REPOSITORY / "docs" / "extending.md"
    for title in ("trainer4090/schedules/linear.py", "conf/schedule/linear.yaml"):
        (tmp_path / title).write_text(code_of(page, title), encoding="utf-8")
    for words, expected in (
        (["list", "schedule"], "Decay linearly to the final factor"),
        (["--cfg", "job", "schedule=linear", "schedule.final_factor=0.5"], "final_factor: 0.5"),
    ):
        command = [sys.executable, "-m", "trainer4090", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert expected in done.stdout
