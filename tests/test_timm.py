"""Models of timm: names and facts from its source agree with what it builds; they train and start from files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import command, plan_of, run_of, train_updates
from equal_runs import state_of
from test_models import WithoutMemory, assert_chain, images, traits

from trainer4090.errors import ConfigError, MachineError
from trainer4090.loop import evaluate
from trainer4090.models import classifiers
from trainer4090.models import timm as entry
from trainer4090.models.networks.chain import find_chain
from trainer4090.records import Model

timm = pytest.importorskip("timm")

ONE_PER_FAMILY = sorted({family: arch for arch, family in reversed(entry.families().items())}.values())
REST = sorted(set(entry.families()) - set(ONE_PER_FAMILY))
DATA = ("data=synthetic_images", "data.height=32", "data.width=32", "data.num_classes=10", "data.pool_size=8",
        "data.num_evaluation=8", "train.batch_size=4", "train.epochs=null", "train.steps=9")  # fmt: skip
TINY = {"vit": "vit_tiny_patch16_224", "resnet": "resnet10t", "convnext": "convnext_atto"}


def words_of(name: str, *words: str) -> tuple[str, ...]:
    return ("model=timm", f"model.arch={TINY[name]}", *DATA, *words)


def test_architectures_are_timms() -> None:
    assert set(entry.families()) == set(timm.list_models())


# Large networks take long to initialise, which the meta device spares; sizes that depend on values do not matter here.
@pytest.mark.parametrize("arch", [*ONE_PER_FAMILY[::8], *(pytest.param(a, marks=pytest.mark.full) for a in
                                  [*ONE_PER_FAMILY, *REST[::12]])])  # fmt: skip
def test_facts(arch: str) -> None:
    with torch.device("meta"):
        module = timm.create_model(arch, num_classes=10)
    known, kinds = traits("timm", arch=arch), list(module.modules())
    norms = [child for child in kinds if isinstance(child, torch.nn.modules.batchnorm._BatchNorm)]
    assert known.batch_norm == bool(norms)
    random = [getattr(child, "p", getattr(child, "drop_prob", 0)) for child in kinds if "Drop" in type(child).__name__]
    assert known.dropout or not any(random)
    blocks = find_chain(module, module.pretrained_cfg["input_size"])
    if entry.families()[arch] != "eva":  # half of them rotate positions inside blocks
        assert known.blocks == bool(blocks)
    if blocks:
        assert_chain(Model(module.eval(), blocks), torch.empty(2, *module.pretrained_cfg["input_size"], device="meta"))


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
@pytest.mark.parametrize("name", TINY)
def test_trains_with_a_frozen_stem(name: str, memory: str) -> None:
    words = words_of(name, "schedule=constant", "optimizer.lr=0.1")
    run = run_of(*words, "model.freeze=[stem]", "optimizer.layer_decay=0.7", f"memory={memory}")
    before = state_of(run)
    train_updates(run, 1)
    evaluate(run)
    train_updates(run, 1)
    after = state_of(run)
    parameters = dict(run.executor.forward.module.named_parameters())
    moved = {key for key in parameters if not torch.equal(after[key], before[key])}
    frozen = {key for key, parameter in parameters.items() if not parameter.requires_grad}
    assert frozen and moved and not moved & frozen


def test_starts_from_a_file_with_another_head(tmp_path: Path) -> None:
    state = state_of(run_of(*words_of("vit", "train.seed=7")))
    torch.save(state, tmp_path / "ten.pt")
    found = state_of(run_of(*words_of("vit", "data.num_classes=3", f"model.weights={tmp_path}/ten.pt")))
    assert all(torch.equal(found[key], state[key]) for key in state if not key.startswith("head."))
    assert found["head.weight"].shape == (3, 192)


@pytest.mark.parametrize(("name", "size", "channels"), [("vit", 48, 1), ("resnet", 40, 2)])
def test_takes_other_sizes_and_channels(name: str, size: int, channels: int) -> None:
    with WithoutMemory():
        model = entry.timm(entry.Config(arch=TINY[name]), images(channels, size, size))
    assert model.module.to("meta")(torch.empty(2, channels, size, size, device="meta")).shape == (2, 10)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("model=timm", "model.arch=resnet51"), r"unknown architecture 'resnet51'; did you mean .*resnet50"),
        (("model=timm", "model.arch=inception_v3", *DATA), "inception_v3 does not take images of 3x32x32"),
        (words_of("vit", "model.weights=torchvision"), r"model=timm is none of torchvision's"),
        (("model=timm", "model.arch=beit_base_patch16_224", *DATA, "memory=checkpoint"), "none: only lone layers"),
    ],
    ids=["arch", "size", "torchvision", "no-blocks"],
)
def test_refusals(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        run_of(*words)


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    classifiers.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=re.escape("timm is not installed; pip install 'trainer4090[timm]'")):
        plan_of("model=timm")
    monkeypatch.undo()
    classifiers.cache_clear()


def test_planning_imports_neither_torch_nor_timm(tmp_path: Path) -> None:
    code = "import sys; from trainer4090.__main__ import main; main(['plan', 'model=timm', 'run.dir=a'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; assert not {{'torch', 'timm'}} & set(sys.modules)"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown: Any = command(["list", "model"], tmp_path).stdout
    assert "timm" in shown
