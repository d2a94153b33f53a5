"""Recipes and a user's own options: they set values, win where they should, and cannot run anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import python_path
from omegaconf import OmegaConf

from trainer4090 import paths
from trainer4090.__main__ import main
from trainer4090.composition import compose
from trainer4090.parse import parse
from trainer4090.spec import flatten

GLOBAL = "# @package _global_\n"
MKDIR = "{_target_: os.mkdir, path: canary}"
HOSTILE = {
    "target": (f"{GLOBAL}run: {MKDIR}\n", "'run._target_'"),
    "target-deep": (f"{GLOBAL}model: {{a: {{b: [1, {MKDIR}]}}}}\n", "'model.a.b.1._target_'"),
    "target-at-the-top": (f"{GLOBAL}_target_: os.mkdir\npath: canary\n", "'_target_'"),
    "partial": (f"{GLOBAL}run: {{name: {{_partial_: true}}}}\n", "'run.name._partial_'"),
    "arguments": (f"{GLOBAL}run: [{{_args_: [canary]}}]\n", "'run.0._args_'"),
    "convert": (f"{GLOBAL}run: {{_convert_: all}}\n", "'run._convert_'"),
    "recursive": (f"{GLOBAL}run: {{_recursive_: true}}\n", "'run._recursive_'"),
    "factory": (f"{GLOBAL}train: {{x: {{(): os.mkdir, path: canary}}}}\n", "'train.x.()'"),
    "hydra": (f"{GLOBAL}hydra: {{callbacks: {{x: {MKDIR}}}}}\n", "'hydra'"),
    "hydra-folder": (f"{GLOBAL}hydra: {{run: {{dir: canary}}, sweep: {{dir: canary}}}}\n", "'hydra'"),
    "hydra-environment": (f"{GLOBAL}hydra: {{job: {{env_set: {{CANARY: '1'}}}}}}\n", "'hydra'"),
    "hydra-inside": (f"{GLOBAL}train: {{hydra: {{x: 1}}}}\n", "'train.hydra'"),
    "hydra-dotted": (f"{GLOBAL}hydra.callbacks: {MKDIR}\n", "'hydra.callbacks'"),
    "package": (f"# @package hydra\ncallbacks: {{x: {MKDIR}}}\n", "package: hydra"),
    "package-deep": (f"# @package hydra.callbacks\nx: {MKDIR}\n", "package: hydra.callbacks"),
    "package-global": (f"# @package _global_.hydra\ncallbacks: {{x: {MKDIR}}}\n", "package: _global_.hydra"),
    "defaults": (f"{GLOBAL}defaults: [override hydra/launcher: basic]\n", "override hydra/launcher"),
    "defaults-absolute": (f"{GLOBAL}defaults: [override /hydra/launcher: basic]\n", "override /hydra/launcher"),
    "defaults-package": (f"{GLOBAL}defaults: [/model@hydra.callbacks.x: cnn]\n", "/model@hydra.callbacks.x"),
    "defaults-option": (f"{GLOBAL}defaults: [override /model: ../../evil]\n", "'../../evil'"),
    "environment": (f"{GLOBAL}run: {{name: '${{oc.env:HOME}}'}}\n", "run.name = '${oc.env:HOME}'"),
    "clock": (f"{GLOBAL}run: {{name: 'a-${{now:%Y}}'}}\n", "run.name"),
    "resolver-nested": (f"{GLOBAL}run: {{name: '${{run.${{oc.env:HOME}}}}'}}\n", "run.name"),
    "resolver-in-list": (f"{GLOBAL}memory: {{x: [1, '${{oc.decode:1}}']}}\n", "memory.x.1"),
    "resolver-in-key": (f"{GLOBAL}run: {{'${{oc.env:HOME}}': 1}}\n", "run.${oc.env:HOME}"),
    "tag": (f"{GLOBAL}run: {{name: !!python/object/apply:os.mkdir [canary]}}\n", "os.mkdir"),
    "tag-short": (f"{GLOBAL}run: !python/name:os.system\n", "os.system"),
    "tag-verbatim": (f"{GLOBAL}run: !<tag:yaml.org,2002:python/object/new:os.mkdir> [canary]\n", "os.mkdir"),
    "merge": (f"{GLOBAL}x: &x {MKDIR}\nrun: {{<<: *x}}\n", "alias"),
}
"""Content -> what the error names besides the file."""


def written(path: str, text: str) -> Path:
    file = Path(path).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert not printed.out
    return printed.err.splitlines()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", ["recipes/mine.yaml", pytest.param("conf/recipe/mine.yaml", marks=pytest.mark.full)])
def test_a_recipe_runs_nothing(place: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, named = HOSTILE[name]
    file = written(place, text)
    assert main(["recipe=mine"]) == 2
    assert [line for line in errors(capsys) if line.startswith(f"trainer4090: error: {file}: ") and named in line]
    assert [path.name for path in Path.cwd().iterdir()] == [place.split("/")[0]]


@pytest.mark.parametrize("name", ["target", "hydra", "package", "environment", "tag", "defaults"])
def test_a_recipe_runs_nothing_in_a_sweep(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Hydra's own start of a sweep, which instantiates callbacks, comes after the check of every job."""
    text, named = HOSTILE[name]
    written("recipes/mine.yaml", text)
    assert main(["-m", "recipe=mine,none", "train.seed=1,2"]) == 2
    assert [line for line in errors(capsys) if named in line]
    assert [path.name for path in Path.cwd().iterdir()] == ["recipes"]


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("conf/model/mine.yaml", f"name: mlp\nhidden: {MKDIR}\n", "'hidden._target_'"),
        ("conf/model/mine.yaml", f"{GLOBAL}hydra: {{callbacks: {{x: {MKDIR}}}}}\n", "@package _global_"),
        ("conf/model/mine.yaml", f"# @package hydra.callbacks.x\n{MKDIR}\n", "@package hydra.callbacks.x"),
        ("conf/model/mine.yaml", "defaults: [/hydra/launcher: basic]\nname: mlp\n", "defaults list"),
        ("conf/model/mine.yaml", "name: ${oc.env:HOME}\n", "name = '${oc.env:HOME}'"),
        ("conf/model/cnn.yaml", f"{MKDIR}\n", "'_target_'"),
        ("conf/memory/mine.yaml", "every: 1\n", "@package memory.OPTION"),
        ("conf/recipe/mine.yaml", f"run: {MKDIR}\n", "@package _global_"),
    ],
    ids=["target", "global", "package", "defaults", "resolver", "shadowed-default", "no-package", "recipe"],
)
def test_an_own_option_runs_nothing(path: str, text: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(path, text)
    group = path.split("/")[1]
    assert main([f"{group}={file.stem}"]) == 2
    assert [line for line in errors(capsys) if line.startswith(f"trainer4090: error: {file}: ") and named in line]
    assert [path.name for path in Path.cwd().iterdir()] == ["conf"]


def test_a_plugin_folder_is_not_imported() -> None:
    for path in ("hydra_plugins/__init__.py", "hydra_plugins/evil.py", "hydra_plugins/evil/__init__.py"):
        written(path, "import os; os.mkdir('canary')\n")
    environment = {**os.environ, "PYTHONPATH": python_path()}
    for words in (["--cfg", "job"], ["plan", "-m", "train.seed=1,2", "run.dir=sweep"]):
        command = [sys.executable, "-m", "trainer4090", *words]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert not Path("canary").exists()


def test_hydras_own_groups_are_not_replaced() -> None:
    """Other projects keep `./conf/hydra`; ours is never taken from there."""
    for name in ("launcher/trainer4090", "job_logging/none", "output/default", "callbacks/default", "default"):
        written(f"conf/hydra/{name}.yaml", f"# @package hydra.callbacks.x\n{MKDIR}\n")
    written("conf/config.yaml", "train: {seed: 77}\nother: project\n")
    written("conf/db/mysql.yaml", "driver: mysql\n")
    assert compose([]).tree["train"]["seed"] == 0
    assert main(["plan", "-m", "train.seed=1,2", "run.dir=sweep"]) == 0
    assert not Path("canary").exists()


@pytest.mark.parametrize("place", ["recipes/mine.yaml", "conf/recipe/mine.yaml"])
def test_an_own_recipe_works(place: str) -> None:
    written(place, f"{GLOBAL}# Mine.\ndefaults:\n  - override /memory: [checkpoint]\ntrain:\n  seed: 7\n")
    tree = compose(["recipe=mine"]).tree
    assert (tree["train"]["seed"], tree["run"]["name"], list(tree["memory"])) == (7, "mine", ["checkpoint"])


def test_own_files_shadow_shipped_ones() -> None:
    written("recipes/digits.yaml", f"{GLOBAL}train: {{seed: 7}}\n")
    written("conf/optimizer/sgd.yaml", "name: sgd\nlr: 0.5\nmomentum: 0.0\nnesterov: false\nweight_decay: 0.0\n")
    written("conf/model/small.yaml", "name: mlp\nhidden: [3]\ndropout: 0.0\nnum_classes: auto\n")
    spec = parse(compose(["recipe=digits", "model=small"]).tree)
    # The shipped recipe sets the rate, the shadowing one does not.
    assert (spec.train.seed, spec.optimizer.config.lr, spec.model.config.hidden) == (7, 0.5, (3,))


def test_own_files_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    written("recipes/mine.yaml", f"{GLOBAL}# Trains mine.\ntrain: {{seed: 7}}\n")
    assert main(["list", "recipe"]) == 0
    assert "Trains mine." in capsys.readouterr().out


def test_a_reference_takes_the_value_of_another_key() -> None:
    written("recipes/mine.yaml", f"{GLOBAL}train: {{seed: '${{train.batch_size}}', log_every: '${{.seed}}'}}\n")
    train = compose(["recipe=mine", "train.batch_size=32"]).tree["train"]
    assert (train["seed"], train["log_every"]) == (32, 32)


OTHER: dict[str, tuple[Any, Any]] = {
    "resume": ("auto", "last"),
    "device": ("cpu", "cuda"),
    "cards": (1, 2),
    "memory_cap_gib": (8.0, 23.3),
    "launch.stall_s": (5.0, 6.0),
    "launch.slow_s": (5.0, 6.0),
    "debug": (True, False),
    "run.name": ("one", "other"),
    "run.dir": ("one", "other"),
    "model.weights": ("one.pt", "other.pt"),
    "model.freeze": (["stem"], ["head"]),
    "optimizer.layer_decay": (0.5, 0.75),
    "data.prefetch_stream": (False, True),
    "train.steps": (5, 6),
    "train.epochs": (5, 6),
    "train.batch_size": (32, 16),
    "train.micro_batch": (16, 8),
    "train.seed": (5, 6),
    "train.clip_norm": (0.5, 0.25),
    "train.log_every": (5, 6),
    "train.log_samples": (5, 6),
    "train.eval_every": (5, 6),
    "train.checkpoint_every": (5, 6),
    "train.deterministic": (True, False),
    "train.best_by": ("eval/accuracy", "eval/top5"),
    "train.patience": (5, 6),
    "train.least_improvement": (0.5, 0.25),
    "ema.decay": (0.9, 0.99),
    "ablate.rows": (["train.seed=1"], ["train.seed=2"]),
    "ablate.axes": ("alone", "memory"),
    "ablate.repeats": (5, 6),
    "ablate.warm_up": (5, 6),
    "ablate.steps": (5, 6),
    "ablate.seconds": (0.5, 0.25),
    "ablate.timeout_s": (0.5, 0.25),
    "ablate.noise": (0.5, 0.25),
}
"""Key -> a recipe's value that is not the default, and a command line's."""


def defaults() -> dict[str, Any]:
    tree: Any = OmegaConf.to_container(OmegaConf.load(paths.CONF / "config.yaml"))
    return {key: value for key, value in tree.items() if key not in ("defaults", "hydra", "task", "plugin")}


def test_every_key_is_compared() -> None:
    assert set(OTHER) == set(flatten(defaults()))


@pytest.mark.parametrize("key", OTHER)
def test_command_line_beats_recipe_beats_defaults(key: str) -> None:
    ours, theirs = OTHER[key]
    tree: dict[str, Any] = {}
    OmegaConf.update(recipe := OmegaConf.create(tree), key, ours)
    written("recipes/mine.yaml", f"{GLOBAL}{OmegaConf.to_yaml(recipe)}")
    assert flatten(defaults())[key] != ours
    assert flatten(compose(["recipe=mine"]).tree)[key] == ours
    word = f"{key}={str(theirs).lower() if isinstance(theirs, bool) else theirs}"
    assert flatten(compose(["recipe=mine", word]).tree)[key] == theirs
    assert flatten(compose([word, "recipe=mine"]).tree)[key] == theirs


def test_command_line_beats_recipe_in_groups() -> None:
    written("recipes/mine.yaml", f"{GLOBAL}defaults: [override /precision: amp]\nprecision: {{floor: 2.0}}\n")
    assert compose(["recipe=mine"]).tree["precision"]["floor"] == 2.0
    assert compose(["recipe=mine", "precision.floor=4.0"]).tree["precision"]["floor"] == 4.0
    written("recipes/other.yaml", f"{GLOBAL}defaults: [override /precision: amp]\n")
    assert compose(["recipe=other", "precision=bf16"]).tree["precision"]["name"] == "bf16"
