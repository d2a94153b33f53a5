"""Data sets: what they say of themselves, what they fetch, and what they refuse."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import image_files as files
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from trainer4090.data import DATA, digits, synthetic_images, text
from trainer4090.data.pipeline import resident
from trainer4090.data.pipeline.prepare import Normalise, normalise_like
from trainer4090.data.pipeline.sources import image_source
from trainer4090.errors import DataError, Problem
from trainer4090.losses import LOSSES
from trainer4090.schema import read

CONF = Path(__file__).parents[1] / "conf"
SMALL = synthetic_images.Config(
    channels=2, height=16, width=12, num_classes=3, num_train=50, num_evaluation=20, pool_size=30
)
CONFIGS = [
    pytest.param("digits", digits.Config(), id="digits"),
    pytest.param("digits", digits.Config(limit=100, augment=False), id="digits limited"),
    pytest.param("synthetic_images", SMALL, id="synthetic_images"),
    pytest.param("text", text.Config(), id="text"),
]


def built(name: str, config: Any, seed: int = 0) -> Any:
    return DATA.get(name).build(config, seed)


def every(source: Any, epoch: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    return source.fetch(torch.arange(len(source)), epoch)


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_traits_are_what_is_built(name: str, config: Any):
    traits = DATA.get(name).traits
    assert traits is not None
    stated, data = traits(config), built(name, config)
    for source, number in ((data.train, stated.num_train), (data.evaluation, stated.num_evaluation)):
        inputs, targets = every(source)
        prepared = data.prepare(inputs)
        assert len(source) == len(inputs) == number
        assert inputs.shape[1:] == prepared.shape[1:] == stated.item_shape
        assert targets.dtype == torch.int64
        assert targets.numel() == number * stated.items_per_sample
        assert targets.min() >= 0 and targets.max() < stated.num_classes
        assert prepared.dtype == (torch.float32 if stated.kind == "images" else torch.int64)


@pytest.mark.parametrize(
    ("group", "name", "config"),
    [pytest.param(group, name, registry.get(name).config, id=f"{group}={name}")
     for group, registry in (("data", DATA), ("loss", LOSSES)) for name in registry.names()],
)  # fmt: skip
def test_yaml_lists_the_defaults(group: str, name: str, config: type):
    path = CONF / group / f"{name}.yaml"
    tree: Any = OmegaConf.to_container(OmegaConf.load(path))
    assert path.read_text().startswith("# ")
    assert list(tree) == ["name", *(field.name for field in dataclasses.fields(config))]
    assert tree.pop("name") == name
    problems: list[Problem] = []
    assert read(config, tree, group, problems) == config()
    assert group == "loss" or "num_workers" in tree


def test_torch_is_imported_by_builders_only(tmp_path: Path):
    files.coloured(tmp_path, {"a": 5, "b": 5})
    code = f"""
import sys
from trainer4090.data import DATA
from trainer4090.losses import LOSSES
LOSSES.names()
fields = {{"image_folder": {{"path": {str(tmp_path)!r}}}}}
for name in {{*DATA.names()}} - {{"cifar10", "tokens"}}:  # their files are not ours to give
    DATA.get(name).traits(DATA.get(name).config(**fields.get(name, {{}})))
assert 'torch' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CONF.parent)


def test_digits_are_the_published_file():
    readme = (digits.BUILT_IN.parent / "README.md").read_text()
    assert hashlib.sha256(digits.BUILT_IN.read_bytes()).hexdigest() in readme


def test_digits_split():
    """No sample is in both splits, the seed does not move it, and the limit takes the first of training."""
    data, limited = built("digits", digits.Config(augment=False)), built("digits", digits.Config(limit=9), seed=1)
    assert len(data.train) + len(data.evaluation) == 1797
    assert every(data.evaluation)[1].bincount().tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert torch.equal(every(data.evaluation)[0], every(limited.evaluation)[0])
    assert torch.equal(every(data.train)[0][:9], every(limited.train)[0])
    prepared = data.prepare(every(data.train)[0])
    assert abs(prepared.mean()) < 1e-5
    assert abs(prepared.std() - 1) < 1e-4


def test_shift_is_a_function_of_seed_epoch_and_sample():
    data = built("digits", digits.Config())
    whole = every(data.train, epoch=3)[0]
    some = torch.tensor([700, 3, 3, 41])
    assert torch.equal(data.train.fetch(some, 3)[0], whole[some])
    others = [
        every(data.train, 4)[0],
        every(built("digits", digits.Config(), seed=1).train, 3)[0],
        every(data.train)[0],
    ]
    assert all(not torch.equal(whole, other) for other in others)


def test_shifts_are_uniform_and_lose_nothing_else():
    """One lit pixel in the centre of 3x3 goes to each of the nine places equally often."""
    image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    image[0, 0, 1, 1] = 200
    source = image_source(image, torch.zeros(1, dtype=torch.int64), num_samples=9000, seed=1, shift=1)
    inputs, _ = every(source, epoch=0)
    lit = (inputs == 200).sum(0).flatten()
    assert lit.sum() == 9000
    assert ((inputs == 0) | (inputs == 200)).all()
    assert lit.min() > 850 and lit.max() < 1150
    assert (every(source)[0] == image).all()


def test_synthetic_images_repeat_a_pool_and_can_be_learned():
    data = built("synthetic_images", SMALL)
    inputs, labels = every(data.train)
    assert torch.equal(inputs[:20], inputs[30:]) and torch.equal(labels[:20], labels[30:])
    assert len(inputs[:30].unique(dim=0)) == 30
    assert not torch.equal(inputs, every(built("synthetic_images", SMALL, seed=1).train)[0])
    centres = torch.stack([inputs[labels == label].float().mean((0, 2, 3)) for label in range(3)])
    held_out, expected = every(data.evaluation)
    nearest = torch.cdist(held_out.float().mean((2, 3)), centres).argmin(1)
    assert (nearest == expected).float().mean() > 0.9


def test_synthetic_images_are_normalised():
    wide = dataclasses.replace(SMALL, num_classes=1000, num_train=1000, pool_size=1000)
    data = built("synthetic_images", wide)
    prepared = data.prepare(every(data.train)[0])
    assert abs(prepared.mean()) < 0.05
    assert abs(prepared.std() - 1) < 0.05


@pytest.mark.parametrize("size", [22, 27, 30, 41, 45, 60, 100])
def test_windows_of_text(tmp_path: Path, size: int):
    """For every offset, windows follow each other, targets are the next token, nothing is read beyond the tail."""
    path = tmp_path / "mine.txt"
    path.write_text("".join(chr(0x3B1 + place) for place in range(size)))
    config = text.Config(path=str(path), length=10, evaluation_fraction=0.5)
    corpus, data = text.load(config), built("text", config)
    assert corpus.vocabulary == path.read_text()
    offsets = set()
    for epoch in range(60):
        inputs, targets = every(data.train, epoch)
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs.flatten().diff(), torch.ones(inputs.numel() - 1, dtype=torch.int64))
        assert targets.max() < len(corpus.train)
        offsets.add(int(inputs[0, 0]))
    assert offsets == set(range(data.train.num_offsets))
    inputs, _ = every(data.evaluation)
    assert inputs[0, 0] == len(corpus.train), "the tail, from its first character"
    assert torch.equal(every(data.evaluation, 5)[0], inputs), "evaluation has no offset"


def test_text_says_which_text_it_is():
    from pydoc_data.topics import topics

    content = "\n".join(topics[name] for name in sorted(topics))
    corpus = text.load(text.Config())
    assert hashlib.sha256(content.encode()).hexdigest()[:12] in corpus.description
    assert "".join(corpus.vocabulary[token] for token in corpus.train[:500]) == content[:500]


BAD_TEXTS = [
    pytest.param(None, "no such file; give data.path", id="missing"),
    pytest.param(b"", "0 characters, 0 of them for evaluation; .*= 129", id="empty"),
    pytest.param(b"x" * 1000, "1000 characters, 100 of them .*smaller data.length", id="short tail"),
    pytest.param(b"x" * 5000 + b"caf\xe9", "byte 5003 is no UTF-8; convert it", id="latin1"),
]


@pytest.mark.parametrize(("content", "message"), BAD_TEXTS)
def test_bad_texts(tmp_path: Path, content: bytes | None, message: str):
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        text.traits(text.Config(path=str(path)))


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_residence(monkeypatch: pytest.MonkeyPatch, name: str, config: Any):
    train, meta = built(name, config).train, torch.device("meta")
    placed = train.resident(meta)
    assert isinstance(placed, resident.Resident)
    assert placed.resident(meta) is placed
    assert train.resident(torch.device("cpu")) is train
    monkeypatch.setattr(resident, "LIMIT_MIB", 0)
    assert train.resident(meta) is train


def test_constant_images_are_not_divided_by_zero():
    images = torch.full((2, 1, 2, 2), 7, dtype=torch.uint8)
    assert normalise_like(images) == Normalise(7.0, 1.0)
    assert not normalise_like(images)(images).any()


INDICATORS = (np.arange(60)[:, None] % np.array([2, 3, 5, 61]) == 0).astype(np.int64)
"""60 samples with four labels; the last is there once."""


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.float32], ids=lambda dtype: dtype.__name__)
def test_several_labels_a_sample(tmp_path: Path, dtype: type):
    path = tmp_path / "mine.npz"
    images = np.arange(60, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), dtype=np.uint8)
    np.savez(path, images=images, labels=INDICATORS.astype(dtype))
    config = digits.Config(path=str(path), augment=False)
    traits, data = digits.traits(config), built("digits", config)
    assert (traits.multi_label, traits.num_classes, traits.smallest_target) == (True, 4, 0)
    assert (traits.num_train, traits.num_evaluation) == (48, 12)
    assert traits.target_problem(None) is None
    seen = []
    for source in (data.train, data.evaluation):
        inputs, targets = every(source)
        assert targets.dtype == torch.float32 and torch.equal(targets, source.targets(torch.arange(len(source)), -1))
        numbers = inputs[:, 0, 0, 0].tolist()
        assert targets.tolist() == INDICATORS[numbers].tolist()
        seen += numbers
    assert sorted(seen) == list(range(60))
    assert every(data.evaluation)[0][:, 0, 0, 0].diff().unique().tolist() == [5], "evenly spaced"
