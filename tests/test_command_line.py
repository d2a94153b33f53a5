"""A mistake in a command line or a recipe: exit 2, a line that names the key and what is allowed, no file."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, python_path
from malformed import FILES, LINES, File, Line

from trainer4090 import paths
from trainer4090.__main__ import main
from trainer4090.composition import compose, overrides
from trainer4090.composition.vocabulary import KEYS, NOTES, OPTIONS
from trainer4090.parse import REGISTRIES
from trainer4090.schema import field_types
from trainer4090.spec import LIST_AXES, flatten

FORM = re.compile(r"trainer4090: error: [^;]+: [^;]*; .+")
LONGEST = 400
"""Characters of an error line: more hide what it says."""
MAX_CPU_S = 3
"""Of a whole process, measured in CPU seconds: other tests share the cores."""


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert not printed.out
    return printed.err.splitlines()


def check(lines: list[str], names: list[str], allowed: str) -> None:
    assert lines and all(FORM.fullmatch(line) for line in lines), lines
    assert all(len(line) <= LONGEST for line in lines), lines
    found = [line for line in lines if all(name in line for name in names) and allowed in line.partition("; ")[2]]
    assert found, lines


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    return tmp_path / "recipes" / "mine.yaml"


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.id)
def test_malformed_line(line: Line, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.typed) == 2
    lines = lines_of(capsys)
    check(lines, [f"error: {line.key}: "], line.allowed)
    assert len(lines) == 1 or line.id == "sweep-refused"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.id)
def test_malformed_recipe(file: File, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine.write_text(file.text)
    assert main(["recipe=mine"]) == 2
    check(lines_of(capsys), [file.key, *([str(mine)] if file.names_file else [])], file.allowed)
    assert [path.name for path in tmp_path.iterdir()] == ["recipes"]


def test_enough_kinds() -> None:
    assert len(LINES) + len(FILES) >= 60
    assert len({line.words for line in LINES}) == len({line.id for line in LINES}) == len(LINES)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["precision=fp99", "train.stepz=4", "optimizer.lr=fast", "+x=1"], "precision train.stepz optimizer.lr x"),
        (["train.seed=x", "train.batch_size=0", "device=gpu"], "device train.batch_size train.seed"),
        (["run.name=a,b", "memory=[", "train.seed=${x}"], "run.name memory train.seed"),
        (["train.micro_batch=5", "cards=2", "train.steps=3"], "train.epochs train.micro_batch cards"),
        (["recipe=none2", "model.hidden=[8]", "train.stepz=4"], "recipe train.stepz"),
        (["model=mlpp", "model.hidden=x", "data=digitz"], "model data"),
        (["-m", "precision=fp31,fp32", "train.seed=1,x", "train.log_every=0"], "precision train.seed train.log_every"),
        (["--cgf", "--mm"], "--cgf --mm"),
    ],
    ids=["each-layer", "values", "grammar", "rules", "unknown-recipe", "unknown-model", "sweep", "flags"],
)
def test_all_problems_are_printed(words: list[str], keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    named = [line.removeprefix("trainer4090: error: ").partition(": ")[0] for line in lines_of(capsys)]
    assert sorted(named) == sorted(keys.split())


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug=true", "train.stepz=3"]) == 2
    assert "Traceback" in (printed := capsys.readouterr().err)
    assert FORM.fullmatch(printed.splitlines()[-1])


NASTY = ("a=b", "a,b", "李明", "#x@y%z", "a b", 'say "a"', "it's", "[a", "back\\slash", 'end\\"', "", "1", "null", "é{")


@pytest.mark.parametrize("value", NASTY)
def test_the_quoted_form_is_ready_to_paste(value: str) -> None:
    """What an error tells to type gives exactly that text, through the shell and through Hydra."""
    (word,) = shlex.split(overrides.quoted("run.name", value))
    assert compose([word]).tree["run"]["name"] == value


def test_no_translation_refuses_what_is_ours() -> None:
    """A word that is valid here is never called another tool's."""
    known = set(flatten(compose([]).tree)) | set(paths.groups())
    for group, registry in REGISTRIES.items():
        fields = {name: field_types(registry.get(name).config) for name in registry.names()}
        inner = f"{group}.{{}}." if group in LIST_AXES else f"{group}."
        known |= {f"{inner.format(name)}{field}" for name in fields for field in fields[name]}
    assert not known & set(KEYS)
    assert not [(group, word) for group, word in OPTIONS if word in paths.options(group)]


def test_translations_lead_somewhere() -> None:
    known = set(flatten(compose([]).tree)) | set(paths.groups())
    assert set(KEYS.values()) | set(NOTES) <= known
    assert not [(group, ours) for (group, _), ours in OPTIONS.items() if ours not in paths.options(group)]


def test_an_own_option_beats_a_translation(tmp_path: Path) -> None:
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "conf/model/lstm.yaml").write_text("name: mlp\nhidden: [4]\ndropout: 0.0\nnum_classes: auto\n")
    assert compose(["model=lstm"]).tree["model"]["hidden"] == [4]


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which importing torch is an error."""
    shim = tmp_path_factory.mktemp("shim")
    for name in ("torch", "tensorboard"):
        (shim / f"{name}.py").write_text(f"raise AssertionError('{name} was imported')\n")
    return {**os.environ, "PYTHONPATH": f"{shim}{os.pathsep}{python_path()}", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("given", ["", "one", f"one{os.pathsep}two"])
def test_a_child_process_keeps_the_path_that_it_is_given(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the packages lie, on some machines."""
    monkeypatch.setenv("PYTHONPATH", given)
    assert python_path().split(os.pathsep) == [str(REPOSITORY), *(given.split(os.pathsep) if given else [])]


def timed(
    words: list[str], folder: Path, environment: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], float]:
    """A finished `python -m trainer4090` and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "trainer4090", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


SOME = ("key", "option", "verb", "resolver", "two-lengths", "sweep-option")


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=() if line.id in SOME else pytest.mark.full, id=line.id) for line in LINES],
)
def test_malformed_line_as_typed(line: Line, tmp_path: Path, without_torch: dict[str, str]) -> None:
    done, cpu_s = timed(line.typed, tmp_path, without_torch)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    check(done.stderr.splitlines(), [f"error: {line.key}: "], line.allowed)
    assert not list(tmp_path.iterdir())
    assert cpu_s < MAX_CPU_S


@pytest.mark.full
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.id)
def test_malformed_recipe_as_typed(file: File, mine: Path, tmp_path: Path, without_torch: dict[str, str]) -> None:
    mine.write_text(file.text)
    done, cpu_s = timed(["recipe=mine"], tmp_path, without_torch)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    check(done.stderr.splitlines(), [file.key], file.allowed)
    assert cpu_s < MAX_CPU_S


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], "groups and their options"),
        (["train", "--help"], "groups and their options"),
        (["predict", "--help"], "top=1"),
        (["data", "prepare", "-h"], "tokenizer=characters"),
        (["generate", "--help"], "temperature=0.8"),
        (["--version"], "."),
        (["list"], "precision"),
        (["list", "precision"], "dynamic loss scaling"),
        (["--cfg", "job", "precision=amp"], "initial_scale"),
        (["--cfg=job"], "batch_size: 64"),
        (["plan", "-c", "job"], "task: plan"),
        (["plan", "card=rtx4090"], "NVIDIA GeForce RTX 4090"),
    ],
    ids=[
        "help",
        "help-train",
        "help-predict",
        "help-prepare",
        "help-generate",
        "version",
        "list",
        "list-group",
        "cfg",
        "cfg-equals",
        "cfg-plan",
        "plan",
    ],
)
def test_answers_without_torch(words: list[str], expected: str, tmp_path: Path, without_torch: dict[str, str]) -> None:
    done, cpu_s = timed(words, tmp_path, without_torch)
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout
    assert not list(tmp_path.iterdir())
    assert cpu_s < (0.5 if words[0] in ("--help", "--version") else 1.5)


def test_the_help_imports_no_hydra() -> None:
    code = "import sys; from trainer4090.__main__ import main; main(['--help']); print('hydra' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
