"""Every mutant is killed: the test that guards a rule fails when the rule is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from mutants import MUTANTS, Mutant

FAILED = 1
"""pytest's exit status for failed tests; an error in collecting them is another one."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the project without its history."""
    copy = tmp_path / "copy"
    for folder in ("trainer4090", "conf", "recipes", "tests"):
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    return copy


def run_tests(copy: Path, *nodes: str) -> subprocess.CompletedProcess[str]:
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-x", "--tb=line", "--show-capture=no")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{node}" for node in nodes)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_line_to_break_is_there_once(mutant: Mutant) -> None:
    """So that no refactoring disarms a mutant in silence; the test that it names exists."""
    assert (REPOSITORY / "trainer4090" / mutant.file).read_text().count(mutant.old) == 1
    file, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (REPOSITORY / "tests" / file).read_text()


@pytest.mark.full
def test_the_tests_pass_in_a_copy_without_mutants(copied: Path) -> None:
    done = run_tests(copied, *sorted({mutant.test for mutant in MUTANTS.values()}))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.full
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_killed(mutant: Mutant, copied: Path) -> None:
    path = copied / "trainer4090" / mutant.file
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
    done = run_tests(copied, mutant.test)
    assert done.returncode == FAILED, done.stdout[-2000:] + done.stderr[-2000:]
