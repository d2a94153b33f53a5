"""The saved spec: what was typed, byte for byte, resolved once, and enough to run again without Hydra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import python_path
from test_shipped import IN_REGISTRIES, RECIPES

from trainer4090 import parse, paths
from trainer4090.composition import compose, overrides
from trainer4090.spec import RunSpec, dump

CARDS = [f"card={name}" for name in paths.options("card")]
CHOICES = [f"{group}={name}" for group, name in IN_REGISTRIES] + [f"recipe={name}" for name in RECIPES] + CARDS
TEXTS = ("a#b@c%d=1,é", "李明", "a b", " a", "", "'", '"', "\\", "1", "1e3", "null", "true", "~", "a: b", "- a", "[1]",
         "{a: 1}", "%x", "!t", "&a", "*a", "a\tb", "a\nb", "x" * 300, "😀", "2030-01-01", "0x1F", "1_000")  # fmt: skip


def spec_of(*words: str) -> RunSpec:
    return parse.parse(compose(words).tree)


def saved(spec: RunSpec) -> Path:
    path = Path("spec.yaml")
    path.write_text(dump(spec), encoding="utf-8")
    return path


@pytest.mark.parametrize("choice", CHOICES)
def test_a_saved_spec_loads_as_itself(choice: str) -> None:
    spec = spec_of(choice)
    path = saved(spec)
    assert "${" not in path.read_text(encoding="utf-8")
    assert parse.load(path) == spec
    assert dump(parse.load(path)) == dump(spec)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_text_survives(text: str) -> None:
    spec = spec_of(overrides.text_override("run.name", text))
    assert spec.run.name == text
    assert parse.load(saved(spec)) == spec


@pytest.mark.parametrize("value", [0.1, 1e-12, 1 / 3, 123456789.125, 5e-324, 1.7976931348623157e308])
def test_a_number_survives(value: float) -> None:
    spec = spec_of(f"optimizer.lr={value!r}")
    assert spec.optimizer.config.lr == value
    assert parse.load(saved(spec)) == spec


def test_a_reference_is_resolved_once() -> None:
    spec = spec_of("train.seed=${train.batch_size}", "train.batch_size=32")
    path = saved(spec)
    assert "${" not in path.read_text(encoding="utf-8")
    assert parse.load(path).train.seed == 32


def test_it_loads_without_hydra() -> None:
    """In a fresh process in an empty directory; its text is the same there."""
    path = saved(spec_of("recipe=gpt2_124m", "memory=checkpoint"))
    code = (
        "import sys; from pathlib import Path; from trainer4090 import parse, spec;"
        f"print(spec.dump(parse.load(Path({str(path.absolute())!r}))), end='');"
        "assert not {'hydra', 'torch'} & set(sys.modules)"
    )
    Path("empty").mkdir()
    environment = {**os.environ, "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd="empty", env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "named"),
    [("train: [", "spec.yaml"), ("- a\n", "mapping"), ("train: 3\n", "train"), ("", "mapping")],
    ids=["no-yaml", "list", "shape", "empty"],
)
def test_a_damaged_spec_is_refused(text: str, named: str) -> None:
    path = Path("spec.yaml")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(parse.ConfigError, match=named):
        parse.load(path)
