"""Every mutant is killed: the test that guards a rule fails when the rule is broken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from forge import Forge
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


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with Forge() as process:
        yield process


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_line_to_break_is_there_once(mutant: Mutant) -> None:
    """So that no refactoring disarms a mutant in silence; the test that it names exists."""
    assert (REPOSITORY / "trainer4090" / mutant.file).read_text().count(mutant.old) == 1
    file, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (REPOSITORY / "tests" / file).read_text()


@pytest.mark.full
def test_the_tests_pass_in_a_copy_without_mutants(copied: Path, forge: Forge) -> None:
    status, output = forge.run_tests(copied, sorted({mutant.test for mutant in MUTANTS.values()}))
    assert status == 0, output


@pytest.mark.full
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_killed(mutant: Mutant, copied: Path, forge: Forge) -> None:
    path = copied / "trainer4090" / mutant.file
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
    status, output = forge.run_tests(copied, [mutant.test])
    assert status == FAILED, output
