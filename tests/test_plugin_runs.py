"""Runs of plugins in processes of their own: sweeps, worker processes, kills, and what a second command must type."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import runs
from conftest import command
from plugin_files import RUN, SOUND, WORDS, isolated
from test_kill import in_update

from trainer4090 import checkpoint_file, parse
from trainer4090.__main__ import main
from trainer4090.errors import ConfigError

LONG = (*RUN, "train.checkpoint_every=3", "train.eval_every=7", "resume=auto", "model.drop=0.2")
DROPPING = SOUND.replace(
    "return self.head(self.body(inputs.flatten(1)))",
    "return self.head(nn.functional.dropout(self.body(inputs.flatten(1)), 0.2, self.training))",
)


@pytest.fixture(autouse=True)
def mine() -> Iterator[Path]:
    path = Path("mine.py").absolute()
    path.write_text(SOUND, encoding="utf-8")
    with isolated():
        yield path


def failed(*words: str, folder: Path | None = None) -> str:
    """The one line of a command that ends with exit 2."""
    done = command(words, folder or Path.cwd())
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("workers", ["data.num_workers=0", "data.num_workers=2"])
def test_killed_run_ends_as_the_unkilled_one(tmp_path: Path, workers: str) -> None:
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(DROPPING, encoding="utf-8")
    assert runs.run(tmp_path / "whole", LONG) == 0
    assert runs.run(tmp_path / "killed", (*LONG, workers), partial(in_update, 11)) == -9
    assert runs.run(tmp_path / "killed", (*LONG, workers)) == 0
    assert "going on from" in runs.output(tmp_path / "killed")
    assert not runs.differences(runs.outcome(tmp_path / "whole"), runs.outcome(tmp_path / "killed"))


def test_a_sweep_hands_it_to_its_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    swept = [word for word in RUN if not word.startswith("run.dir")]
    assert main(["-m", *swept, "run.dir=sweep", "model.width=4,6"]) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in Path("sweep/sweep.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert [parse.load(Path(f"sweep/{job}/spec.yaml")).model.config.width for job in (0, 1)] == [4, 6]


def test_a_job_refuses_other_code_than_the_sweep_was_checked_with(mine: Path) -> None:
    assert main([*RUN]) == 0
    mine.write_text(f"{SOUND}\n# changed\n")
    from trainer4090.sweeps.job import command as job_command

    for names, text in ((["./mine.py"], "sha256"), ([], "type it again: plugin=./mine.py")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            import subprocess

            words = [*job_command(Path("run")), *names]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2 and text in done.stderr


def test_what_a_second_command_must_type(mine: Path, tmp_path: Path) -> None:
    assert main([*RUN, "train.checkpoint_every=10"]) == 0
    here, there = tmp_path / "run", tmp_path / "elsewhere"
    there.mkdir()
    assert "type it again: plugin=./mine.py" in failed("run.dir=run", "resume=last")
    assert "type it again: plugin=./mine.py" in failed("evaluate", "run=run")
    assert f"type it again: plugin={mine}" in failed("evaluate", f"run={here}", folder=there)
    # The same content elsewhere is the same plugin, whatever it is called.
    (there / "copied.py").write_text(SOUND, encoding="utf-8")
    for word in ("plugin=../mine.py", "plugin=./copied.py", "plugin=copied"):
        assert command(["evaluate", f"run={here}", word], there).returncode == 0
    assert command(["train.steps=20", f"run.dir={here}", "resume=last", "plugin=../mine.py"], there).returncode == 0


def test_a_changed_plugin(mine: Path) -> None:
    assert main([*RUN, "train.checkpoint_every=10"]) == 0
    mine.write_text(f"{SOUND}\n# changed\n")
    line = failed("run.dir=run", "resume=last", "plugin=./mine.py")
    assert "plugin ./mine.py: sha256 " in line and "was made with" in line and "without resume" in line
    done = command(["evaluate", "run=run", "plugin=./mine.py"], Path.cwd())
    assert done.returncode == 0 and "plugin ./mine.py has sha256" in done.stdout


def test_resuming_by_name_says_what_to_type() -> None:
    named = [word for word in RUN if not word.startswith("run.dir")]
    assert main(named) == 0
    assert "plugin=./mine.py" in failed("model=net", "data=rings", "resume=last")
    assert command([*named, "resume=last"], Path.cwd()).returncode == 0


def test_an_installed_package_is_loaded_by_being_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package, metadata = tmp_path / "site/my_package", tmp_path / "site/my_package-1.2.dist-info"
    for folder in (package, metadata):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text("from my_package import parts\n")
    (package / "parts.py").write_text(SOUND)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text("[trainer4090.plugins]\nmine = my_package\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "site"))
        assert main(["list", "model"]) == 0 and "My network." in capsys.readouterr().out
        assert main([*RUN[1:], "data.num_workers=2"]) == 0
        assert main(["evaluate", "run=run"]) == 0
        (record,) = parse.load(Path("run/spec.yaml")).root.plugin
        assert (record.name, record.distribution) == ("mine", "my-package 1.2")
        assert main(["run.dir=other", "train.steps=1", "train.epochs=null", "device=cpu"]) == 0
        assert not parse.load(Path("other/spec.yaml")).root.plugin  # none of its options is chosen
    assert "run/spec.yaml was made with my-package 1.2" in failed("evaluate", "run=run")


def test_a_broken_package_says_whose_it_is(tmp_path: Path) -> None:
    metadata = tmp_path / "my_package-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text("[trainer4090.plugins]\nmine = not_there\n")
    line = failed("list")
    assert "the entry point mine of my-package 1.2" in line and "pip uninstall my-package" in line


def test_the_saved_state_knows_it() -> None:
    assert main([*RUN]) == 0
    saved = checkpoint_file.load(checkpoint_file.files(Path("run"))[0])
    assert [record["name"] for record in saved["spec"]["plugin"]] == ["./mine.py"]
    assert WORDS[0] == "plugin=./mine.py"


def test_a_spec_is_never_run_without_its_plugin() -> None:
    assert main([*RUN]) == 0
    with isolated():
        from trainer4090 import plugin_modules

        for plugin in plugin_modules.loaded():
            plugin_modules.drop(plugin.module)
        with pytest.raises(ConfigError, match="only a command line loads"):
            parse.load(Path("run/spec.yaml"))
