"""Plugins: what they register is chosen, listed and swept like an option of ours, and nothing else loads them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import command
from omegaconf import OmegaConf
from plugin_files import RUN, SOUND, WORDS, isolated

from trainer4090 import parse, paths, plan
from trainer4090.__main__ import main
from trainer4090.composition import compose
from trainer4090.plugins import loading


@pytest.fixture(autouse=True)
def mine() -> Iterator[Path]:
    """The sound plugin as `./mine.py`; what a test loads is taken back."""
    path = Path("mine.py").absolute()
    path.write_text(SOUND, encoding="utf-8")
    with isolated():
        yield path


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def spec_of(*words: str) -> parse.RunSpec:
    loading.load(["./mine.py"])
    return parse.parse(compose(words).tree)


def test_a_run_of_nothing_but_own_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "done: 20 updates" in printed(capsys, *RUN, "memory=checkpoint", "model.width=4")
    assert "eval loss" in printed(capsys, "evaluate", "run=run", "plugin=./mine.py")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["list", "model"], "net                  My network."),
        (["list"], "rings"),
        (["--help"], "margin"),
        (["--cfg", "job", "model=net", "model.width=3"], "width: 3"),
        (["--cfg", "job", "loss=margin"], "margin: 1.0"),
        (["plan", "model=net", "card=rtx4090"], "model         net"),
        (["plan", *WORDS[1:]], "96 training samples of 2, 32 held out, 2 classes"),
    ],
    ids=["list-group", "list", "help", "cfg", "cfg-loss", "plan", "plan-data"],
)
def test_it_is_shown(capsys: pytest.CaptureFixture[str], words: list[str], expected: str) -> None:
    assert expected in printed(capsys, *words, "plugin=./mine.py")


def test_a_module_is_a_plugin_too(capsys: pytest.CaptureFixture[str], mine: Path) -> None:
    Path("pack").mkdir()
    mine.rename("pack/net.py")
    assert "My network." in printed(capsys, "list", "model", "plugin=pack.net")


def test_several_plugins_and_the_files_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.py").write_text(SOUND.replace('"net"', '"other"').partition("@dataclass(frozen=True)\nclass Mar")[0])
    Path("third.py").write_text("import beside")
    Path("beside.py").write_text("from third_party import value\n")
    Path("third_party.py").write_text("value = 1\n")
    shown = printed(capsys, "list", "model", "plugin=[./mine.py,./other.py,third.py]")
    assert " net " in shown and " other " in shown


def test_a_plugin_hides_no_module() -> None:
    """Not by its own name, and not by the files beside it."""
    Path("json.py").write_text(f"raise AssertionError\n{SOUND}")
    Path("data.py").write_text(SOUND)
    loading.load(["./data.py"])
    import json

    assert json.dumps(1) == "1" and "data" not in sys.modules
    assert sys.path[-1] == str(Path.cwd())


def test_own_yaml_wins() -> None:
    Path("conf/model").mkdir(parents=True)
    Path("conf/model/net.yaml").write_text("name: net\nwidth: 5\ndrop: 0.0\n")
    Path("conf/model/small.yaml").write_text("name: net\nwidth: 2\ndrop: 0.0\n")
    assert spec_of("model=net").model.config.width == 5
    assert spec_of("model=small").model.config.width == 2


def test_a_recipe_chooses_it() -> None:
    Path("recipes").mkdir()
    Path("recipes/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: net\nmodel: {width: 6}\n"
    )
    assert spec_of("recipe=mine").model.config.width == 6


@pytest.mark.parametrize("value", ["./mine.py", "[./mine.py]", "os"])
def test_no_yaml_loads_it(value: str, capsys: pytest.CaptureFixture[str], mine: Path) -> None:
    mine.write_text("import pathlib; pathlib.Path('canary').touch()")
    Path("recipes").mkdir()
    recipe = Path("recipes/mine.yaml").absolute()
    recipe.write_text(f"# @package _global_\nplugin: {value}\n")
    assert f"{recipe}: key 'plugin'; no file of values runs code: type plugin=" in printed(
        capsys, "recipe=mine", code=2
    )
    assert not Path("canary").exists()


def test_a_spec_loads_nothing(capsys: pytest.CaptureFixture[str], mine: Path) -> None:
    printed(capsys, *RUN)
    mine.write_text("import pathlib; pathlib.Path('canary').touch()")
    done = command(["run.dir=run", "resume=last"], Path.cwd())
    assert done.returncode == 2 and "type it again: plugin=./mine.py" in done.stderr
    assert command(["evaluate", "run=run"], Path.cwd()).returncode == 2
    assert not Path("canary").exists()


def test_traits_are_those_of_what_is_built(mine: Path) -> None:
    mine.write_text(SOUND.replace("nn.ReLU()", "nn.BatchNorm1d(width), nn.Dropout(config_drop)").replace(
        "class Net(", "config_drop = 0.1\n\n\nclass Net("
    ))  # fmt: skip
    before = torch.get_rng_state()
    found = plan.gather(spec_of("model=net", "data=rings", "data.size=50"))
    assert torch.equal(before, torch.get_rng_state())
    assert (found.data.kind, found.data.item_shape, found.data.num_classes) == ("vectors", (2,), 2)
    assert (found.data.num_train, found.data.num_evaluation, found.data.items_per_sample) == (50, 32, 1)
    assert (found.model.kind, found.model.batch_norm, found.model.dropout) == ("vectors", True, True)
    assert found.model.blocks and not found.model.channels_last


def test_a_value_without_a_default_must_be_given(capsys: pytest.CaptureFixture[str], mine: Path) -> None:
    mine.write_text(SOUND.replace("    width: int = 8\n", "    width: int\n"))
    line = printed(capsys, "plugin=./mine.py", "model=net", code=2)
    assert line.strip().endswith("model.width: no value; it has no default: type model.width=... with an integer")
    assert "width: 3" in printed(capsys, "plugin=./mine.py", "model=net", "model.width=3", "--cfg", "job")


def test_a_config_refuses_what_does_not_go_together(capsys: pytest.CaptureFixture[str], mine: Path) -> None:
    check = "\n    def __post_init__(self):\n        if self.width % 2:\n            raise ValueError('an odd width')\n"
    mine.write_text(SOUND.replace("    drop: Probability = 0.0\n", f"    drop: Probability = 0.0\n{check}"))
    assert "model: an odd width; give" in printed(capsys, "plugin=./mine.py", "model=net", "model.width=3", code=2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model=nett"], "model: unknown option 'nett'; did you mean net?"),
        (["model=net", "model.widht=3"], "model.widht: unknown key of model=net; did you mean model.width?"),
        (["model=net", "model.width=a"], "model.width: 'a'; allowed is an integer"),
        (["model.width=3", "model=mlp"], "model.width: unknown key of model=mlp; it belongs to model=char_lstm"),
        (["data=rings"], "model: cnn takes images, but data=rings gives vectors; use data=digits"),
    ],
    ids=["option", "key", "type", "owner", "kind"],
)
def test_errors_know_it(capsys: pytest.CaptureFixture[str], words: list[str], expected: str) -> None:
    assert expected in printed(capsys, "plugin=./mine.py", *words, code=2)


def test_the_record_is_the_file(capsys: pytest.CaptureFixture[str], mine: Path) -> None:
    printed(capsys, *RUN)
    tree: Any = OmegaConf.to_container(OmegaConf.load("run/spec.yaml"))
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert tree["plugin"] == [{"name": "./mine.py", "path": str(mine), "sha256": digest, "distribution": None}]
    assert "plugin=./mine.py" in Path("run/overrides.txt").read_text().splitlines()


def test_without_plugins_nothing_is_added() -> None:
    assert compose([]).tree["plugin"] == [] and paths.of_plugins() == {}
