"""Starting from weights: what is read, what must agree, what is replaced, and that nothing in a file is run."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import runs
import safetensors.torch
import torch
import torchvision
from conftest import plan_of, run_of, train_updates
from equal_runs import assert_same, state_of, tiny

from trainer4090.__main__ import main
from trainer4090.build import build
from trainer4090.errors import CheckpointFileError, ConfigError, MachineError
from trainer4090.models.networks.torchvision_weights import torchvision_weights

CPU = torch.device("cpu")
RESNET = tiny("resnet")


def other(*words: str) -> dict[str, torch.Tensor]:
    """State of another initialisation."""
    return state_of(run_of(*words, "train.seed=7"))


def started(path: str | Path, *words: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """State of a run that starts from `path`, and what it tells."""
    told: list[str] = []
    run = build(plan_of(*words, f'model.weights="{path}"'), CPU, told.append)
    return state_of(run), told


def as_safetensors(state: dict[str, torch.Tensor], path: Path) -> None:
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in state.items()}, path)


WRITERS: dict[str, Callable[[dict[str, torch.Tensor], Path], None]] = {
    "bare": torch.save,
    "safetensors": as_safetensors,
    "state_dict": lambda state, path: torch.save({"state_dict": state, "epoch": 3, "optimizer": {}}, path),
    "model": lambda state, path: torch.save({"model": state, "args": [1]}, path),
    "ddp": lambda state, path: torch.save({f"module.{name}": value for name, value in state.items()}, path),
    "compiled-ddp": lambda state, path: torch.save(
        {"model": {f"_orig_mod.module.{name}": value for name, value in state.items()}}, path
    ),
    "lightning": lambda state, path: torch.save(
        {"state_dict": {f"model.{name}": value for name, value in state.items()}}, path
    ),
    "half": lambda state, path: torch.save(
        {name: value.half() if value.is_floating_point() else value for name, value in state.items()}, path
    ),
    "old-batch-norm": lambda state, path: torch.save(
        {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}, path
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_files_of_many_makers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    state = other(*RESNET)
    WRITERS[kind](state, path)
    found, told = started(path, *RESNET)
    if kind == "half":
        state = {name: value.half().to(value.dtype) for name, value in state.items()}
    assert_same(found, state)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in " ".join(told)
    assert len(told) == {"state_dict": 2, "model": 2, "ddp": 2, "compiled-ddp": 4, "lightning": 3}.get(kind, 1), told


def test_only_the_head_is_replaced_for_other_classes(tmp_path: Path) -> None:
    state = other(*RESNET)
    torch.save(state, tmp_path / "ten.pt")
    words = [word.replace("num_classes=10", "num_classes=4") for word in RESNET]
    found, told = started(tmp_path / "ten.pt", *words)
    fresh = state_of(run_of(*words))
    for name, tensor in found.items():
        assert torch.equal(tensor, fresh[name] if name.startswith("fc.") else state[name]), name
    assert f"model.weights: fc is new, for 4 classes where {tmp_path / 'ten.pt'} has 10" in told


HEADS = {
    "cnn": ("model=cnn", "model.width=4"),
    "squeezenet": ("model=torchvision", "model.arch=squeezenet1_1"),
    "mobilenet": ("model=torchvision", "model.arch=mobilenet_v3_small"),
    "densenet": ("model=torchvision", "model.arch=densenet121"),
    "vit": ("model=vit_b_16",),
    "vgg": ("model=torchvision", "model.arch=vgg11"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] if name in ("densenet", "vit", "vgg") else []) for name in HEADS],
)
def test_heads_of_other_families(name: str, tmp_path: Path) -> None:
    data = ("data=synthetic_images", "data.height=64", "data.width=64", "data.pool_size=4", "data.num_evaluation=4")
    words = (*HEADS[name], *data, "train.batch_size=2", "train.epochs=null", "train.steps=1")
    torch.save(other(*words, "data.num_classes=5"), tmp_path / "five.pt")
    _, told = started(tmp_path / "five.pt", *words, "data.num_classes=3")
    assert [text for text in told if "is new, for 3 classes where" in text and text.endswith("has 5")]


GPT = tiny("gpt")


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights(tied: bool, tmp_path: Path) -> None:
    """A tied parameter may stand once in a file; two values for it are another model."""
    words = (*GPT, f"model.tie={str(tied).lower()}")
    state = other(*words)
    torch.save(state, tmp_path / "both.pt")
    assert_same(started(tmp_path / "both.pt", *words)[0], state)
    if tied:
        once = {name: tensor for name, tensor in state.items() if name != "head.weight"}
        torch.save(once, tmp_path / "once.pt")
        assert_same(started(tmp_path / "once.pt", *words)[0], state)
    else:
        with pytest.raises(ConfigError, match=r"token_embedding.weight and head.weight differ, and are one"):
            started(tmp_path / "both.pt", *GPT)


@pytest.mark.parametrize("ema", [(), ("ema.decay=0.5",)], ids=["plain", "averaged"])
@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_a_run_and_its_files(name: str, ema: tuple[str, ...], tmp_path: Path) -> None:
    folder = runs.new_folder(tmp_path / "work")
    words = (*{"cnn": runs.CNN, "gpt": runs.GPT}[name], *ema)
    assert runs.train(folder, *words, "train.steps=4", "train.eval_every=4") == 0
    saved = runs.state(folder)["executor"]
    expected = saved["model"] | (saved["average"] or {})
    if name == "gpt":
        expected["head.weight"] = expected["token_embedding.weight"]
    best = (folder / "run/checkpoints/best.json").read_text()
    assert '"step": 4' in best
    for path in ("run", "run/checkpoints/step-00000004.pt"):
        own = [word if not word.startswith("data.path") else f"data.path={folder}/text.txt" for word in words]
        found, told = started(folder / path, *own)
        assert_same(found, expected)
        assert bool(ema) == any("averaged parameters are taken" in text for text in told)


class _Evil:
    def __reduce__(self) -> Any:
        return (Path("canary").mkdir, ())


def _spoiled(path: Path) -> None:
    torch.save(other(*RESNET), path)
    path.write_bytes(path.read_bytes()[:-1000])


FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "garbage": lambda path: path.write_bytes(b"\x80garbage" * 50),
    "text": lambda path: path.write_text("hello"),
    "empty": lambda path: path.touch(),
    "cut": _spoiled,
    "pickle": lambda path: torch.save(_Evil(), path),
    "module": lambda path: torch.save(torch.nn.Linear(1, 1), path),
    "list": lambda path: torch.save([1, 2], path),
    "no-tensors": lambda path: torch.save({"epoch": 3}, path),
    "no-safetensors": lambda path: path.write_bytes(b"\x10" + b"\0" * 7 + b"{garbage}"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_cannot_be_used(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FILES[kind](tmp_path / "weights.pt")
    assert main(["model.weights=weights.pt", "device=cpu", "run.dir=run"]) == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainer4090: error: model.weights: weights.pt") and len(line) < 400 and "; " in line
    assert not Path("canary").exists()
    assert Path("run").exists() == (kind not in ("missing", "folder"))


def without(*names: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda state: {name: value for name, value in state.items() if name not in names}


OTHERS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (without("head.bias"), "without head.bias;"),
    "unexpected": (lambda state: state | {"spare.weight": torch.ones(1)}, "with spare.weight;"),
    "shape": (lambda state: state | {"blocks.0.norm.bias": torch.ones(7)}, "blocks.0.norm.bias 7 for 4 here;"),
    "kind": (lambda state: state | {"blocks.0.norm.bias": torch.ones(4, dtype=torch.int64)}, "blocks.0.norm.bias 4"),
    "wider-head": (lambda state: state | {"head.weight": torch.ones(5, 9)}, "head.weight 5x9 for 10x16 here"),
    "another": (
        lambda state: torchvision.models.resnet18().state_dict(),
        "with conv1.weight, bn1.weight, bn1.bias and 119 more",
    ),
    "parts": (lambda state: {"head.weight": state["head.weight"]}, "without blocks.0.convolution.weight, "),
    "nothing-alike": (lambda state: {f"x.{name}": value for name, value in state.items()}, "with x.blocks.0"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_weights_of_another_model(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, named = OTHERS[kind]
    torch.save(change(other("model=cnn", "model.width=4")), "weights.pt")
    assert main(["model=cnn", "model.width=4", "model.weights=weights.pt", "device=cpu", "run.dir=run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainer4090: error: model.weights: weights.pt is of another model: ")
    assert named in line and len(line) < 400


def test_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_safetensors(other(*tiny("mlp")), tmp_path / "a.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MachineError, match=r"pip install 'trainer4090\[safetensors\]'"):
        started(tmp_path / "a.safetensors", *tiny("mlp"))


def test_the_seed_of_training_does_not_depend_on_the_start(tmp_path: Path) -> None:
    """From its own initialisation a run is the run without weights, bit for bit, with dropout."""
    words = tiny("cnn", "model.dropout=0.3")
    plain = run_of(*words)
    torch.save(state_of(plain), tmp_path / "own.pt")
    losses = train_updates(run_of(*words), 3)
    assert train_updates(run_of(*words, f"model.weights={tmp_path}/own.pt"), 3) == losses


def test_resumes_without_the_file(tmp_path: Path) -> None:
    whole, cut = (runs.new_folder(tmp_path / name) for name in ("whole", "cut"))
    words = (*runs.CNN, "model.weights=start.pt", "model.freeze=[stem]", "optimizer.layer_decay=0.5")
    for folder in (whole, cut):
        torch.save(other("model=cnn", "model.width=4"), folder / "start.pt")
    assert runs.train(whole, *words) == 0
    with runs.signalled(17):
        assert runs.train(cut, *words) == 143
    (cut / "start.pt").unlink()
    for change in ("model.weights=null", "model.freeze=[]", "optimizer.layer_decay=0.9"):
        assert runs.train(cut, "resume=last", "run.dir=run", change) == 2
    assert runs.train(cut, "resume=last", "run.dir=run") == 0
    assert runs.differences(runs.outcome(cut), runs.outcome(whole)) == []
    assert runs.train(cut, "evaluate", "run=run") == 0


@pytest.mark.full
def test_a_sweep_over_starts(tmp_path: Path) -> None:
    torch.save(other("model=mlp", "model.hidden=[8]"), "start.pt")
    words = ("model=mlp", "model.hidden=[8]", "train.epochs=null", "train.steps=2", "device=cpu", "run.dir=sweep")
    assert main(["-m", *words, "model.weights=start.pt", "model.freeze=[],[stem]"]) == 0
    assert "weights of start.pt, frozen: stem" in Path("sweep/1/train.log").read_text()


@pytest.mark.parametrize("sweep", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_latest_run_is_the_one_before(sweep: bool) -> None:
    """Though `outputs/latest` leads to the new run before that reads its weights."""
    words = ("model=mlp", "model.hidden=[8]", "train.epochs=null", "train.steps=2", "device=cpu")
    assert main([*words, "run.name=first"]) == 0
    folder = Path("outputs/latest").resolve()
    swept = ["-m", "train.seed=0,1"] if sweep else []
    assert main([*words, "run.name=second", "model.weights=outputs/latest", *swept]) == 0
    newest = Path("outputs/latest/0" if sweep else "outputs/latest")
    assert folder != newest.resolve()
    assert f"weights: outputs/first/{folder.name}" in (newest / "spec.yaml").read_text()


# Published weights.


def fake_publisher(monkeypatch: pytest.MonkeyPatch, url: str, num_classes: int = 1000) -> Path:
    """Let torchvision publish one version for any architecture at `url`; the folder where torch.hub keeps files."""
    transforms = SimpleNamespace(mean=[0.485], std=[0.229])
    version = SimpleNamespace(url=url, transforms=lambda: transforms)
    known = Enum("ResNet18_Weights", {"IMAGENET1K_V1": 1})
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda arch: _Versions(known, version))
    folder = Path("hub").absolute()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder))
    return folder / "checkpoints"


class _Versions:
    def __init__(self, known: Any, version: Any) -> None:
        self.__members__ = {name: version for name in known.__members__}
        self.DEFAULT = version

    def __getitem__(self, name: str) -> Any:
        return self.__members__[name]


def published(folder: Path, arch: str = "resnet18") -> tuple[Path, dict[str, torch.Tensor]]:
    """A file as torchvision names it: the first digits of its sha256 stand in the name."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    state = torchvision.models.get_model(arch, weights=None).state_dict()
    torch.save(state, folder / "raw")
    digits = hashlib.sha256((folder / "raw").read_bytes()).hexdigest()[:8]
    return (folder / "raw").rename(folder / f"{arch}-{digits}.pth"), state


@pytest.mark.parametrize("word", ["torchvision", "torchvision:IMAGENET1K_V1"])
@pytest.mark.parametrize("cached", [True, False])
def test_published_weights(cached: bool, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, state = published(Path("server").absolute())
    cache = fake_publisher(monkeypatch, path.as_uri())
    if cached:
        cache.mkdir(parents=True)
        shutil.move(path, cache / path.name)
    found, told = started(word, *RESNET)
    assert all(torch.equal(found[name], state[name]) for name in state if not name.startswith("fc."))
    assert any("fc is new, for 10 classes where torchvision" in text for text in told)
    assert any("mean [0.485] and deviation [0.229]" in text for text in told)
    assert (cache / path.name).is_file()


def test_published_weights_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = published(Path("server").absolute())
    cache = fake_publisher(monkeypatch, path.as_uri())
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(MachineError, match=rf"cannot download {path.name} \(invalid hash"):
        torchvision_weights("resnet18", "", print)
    assert not list(cache.iterdir())
    shutil.copy(path, cache / path.name)
    with pytest.raises(CheckpointFileError, match=r"is damaged: its sha256 begins with .*; delete it"):
        torchvision_weights("resnet18", "", print)


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = fake_publisher(monkeypatch, "http://127.0.0.1:9/resnet18-f37072fd.pth")
    with pytest.raises(MachineError) as caught:
        started("torchvision", *RESNET)
    (problem,) = caught.value.problems
    assert problem.given.startswith("cannot download resnet18-f37072fd.pth (")
    assert problem.remedy == f"get resnet18-f37072fd.pth on another machine and put it in {cache}"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("model=cnn", "model.weights=torchvision"), "model=cnn is none of torchvision's"),
        (("model=torchvision", "model.arch=inception_v3", *RESNET[1:4], "model.weights=torchvision"), "another frame"),
        ((*RESNET, "model.weights=torchvision:V9"), "torchvision has no 'V9' for resnet18; versions: IMAGENET1K_V1"),
    ],
    ids=["not-torchvisions", "other-normalisation", "version"],
)
def test_weights_that_are_not_published(words: tuple[str, ...], named: str) -> None:
    data = ("data.height=96", "data.width=96") if "inception_v3" in " ".join(words) else ()
    with pytest.raises(ConfigError, match=named):
        run_of(*words, *data)


def test_densenets_old_names_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's file has `denselayer1.norm.1.weight` for `denselayer1.norm1.weight`."""
    folder = Path("server").absolute()
    path, state = published(folder, "densenet121")
    old = {
        name.replace("norm1.", "norm.1.").replace("norm2.", "norm.2.").replace("conv1.", "conv.1.")
        if "denselayer" in name
        else name: value
        for name, value in state.items()
    }
    torch.save(old, path)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    fake_publisher(monkeypatch, path.rename(folder / f"densenet121-{digits}.pth").as_uri())
    assert list(torchvision_weights("densenet121", "", print)) == list(state)


def test_all_of_torchvisions_files_carry_a_hash() -> None:
    from trainer4090.models.networks.torchvision_weights import HASH

    for arch in torchvision.models.list_models(module=torchvision.models):
        for version in torchvision.models.get_model_weights(arch):
            assert HASH.search(version.url.rpartition("/")[2]), version.url
            assert version.transforms().mean, version
