"""`data=image_folder` from folder to accuracy: what is fetched, by whom, what unreadable files do, and resume."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import image_files as files
import numpy as np
import pytest
import runs
import torch
from conftest import run_of
from PIL import Image
from torch import nn

from trainer4090 import loop
from trainer4090.__main__ import main
from trainer4090.data import DATA, Data, image_folder
from trainer4090.data.pipeline.decode import decode
from trainer4090.data.pipeline.loader import Position, evaluation_batches, training_batches
from trainer4090.data.pipeline.workers import MOST_AUTOMATIC, num_processes
from trainer4090.errors import ConfigError, DataError
from trainer4090.item_format import ImageFormat

SEED = 3
START = Position(0, 0)


def noisy(root: Path, counts: dict[str, int]) -> Path:
    """Class folders of different noisy images of different sizes, PNG and JPEG."""
    for name, count in counts.items():
        for number in range(count):
            generator = np.random.default_rng([number, len(name)])
            pixels = generator.integers(0, 256, (20 + number, 25, 3), dtype=np.uint8)
            kind = ("PNG", "JPEG")[number % 2]
            files.write(root / name / f"{number:03}.{kind.lower()}", Image.fromarray(pixels), kind)
    return root


def built(path: Path, seed: int = SEED, **fields: Any) -> Data:
    return DATA.get("image_folder").build(image_folder.Config(path=str(path), **{"size": 16, **fields}), seed)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def take(data: Data, count: int, num_workers: int = 0, start: Position = START) -> list[tuple[Any, Position]]:
    with closing(training_batches(data.train, torch.Tensor.numel, 4, SEED, start, num_workers, pin=False)) as batches:
        return [((*batch.inputs, batch.targets), position) for batch, position in islice(batches, count)]


def same(first: list[tuple[Any, Position]], second: list[tuple[Any, Position]]) -> bool:
    return len(first) == len(second) and all(
        before == after and all(map(torch.equal, ours, others))
        for (ours, before), (others, after) in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "with broken files"])
def test_batches_are_the_same_with_workers_and_after_a_resume(tmp_path: Path, broken: bool) -> None:
    root = noisy(tmp_path, {"cat": 9, "dog": 7})
    if broken:
        damage(root / "cat/002.png")
        damage(root / "dog/006.png")
    data = built(root, val_fraction=0.2, on_error="skip" if broken else "fail")
    whole = take(data, 8)
    assert {position.epoch for _, position in whole} >= {0, 1, 2}
    for num_workers in (1, 2):
        fresh = built(root, val_fraction=0.2, on_error="skip" if broken else "fail")
        assert same(take(fresh, 8, num_workers), whole)
        assert len(fresh.notices()) == (2 if broken else 0), "what workers meet is known here"
    for done in (1, 5):
        assert same(take(data, 8 - done, 2, start=whole[done - 1][1]), whole[done:])
    assert not same(take(built(root, seed=4, val_fraction=0.2, on_error="skip"), 8), whole)


def test_augmentation_is_a_function_of_seed_epoch_and_sample(tmp_path: Path) -> None:
    train = built(noisy(tmp_path, {"cat": 12, "dog": 12})).train
    everything = torch.arange(len(train))
    (images, flips), _ = train.fetch(everything, 5)
    some = torch.tensor([7, 1, 1, 4])
    (few, few_flips), _ = train.fetch(some, 5)
    assert torch.equal(few, images[some]) and torch.equal(few_flips, flips[some])
    (others, other_flips), _ = train.fetch(everything, 6)
    assert (images != others).flatten(1).any(1).all()
    assert not torch.equal(flips, other_flips)
    plain, _ = train.fetch(everything, -1)
    assert isinstance(plain, torch.Tensor) and (plain != images).flatten(1).any(1).all()


def test_flips_are_a_fair_coin_and_happen_on_the_device(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(5):
            files.write(tmp_path / name / f"{number}.png", files.halves(16, 16))
    data = built(tmp_path, smallest_crop=1.0, shorter_side=16, mean=0.0, deviation=1.0)
    flips = torch.cat([data.train.fetch(torch.arange(8), epoch)[0][1] for epoch in range(200)])
    assert 0.45 < flips.float().mean() < 0.55
    (images, flips), _ = data.train.fetch(torch.arange(8), 1)
    assert (images[:, 0, :, 0] == 255).all(), "stored as they are"
    prepared = data.prepare((images, flips))
    assert ((prepared[:, 2, :, 0] == 255).all(1) == flips).all(), "blue comes to the left"
    assert 0 < flips.sum() < 8
    unflipped = built(tmp_path, flip=False, smallest_crop=1.0, shorter_side=16).train.fetch(torch.arange(8), 1)[0]
    assert torch.equal(unflipped, images)


def test_held_out_images_are_what_predict_decodes(tmp_path: Path) -> None:
    data = built(noisy(tmp_path, {"cat": 5, "dog": 5}), channels=1)
    assert isinstance(data.format, ImageFormat) and data.format.class_names == ("cat", "dog")
    images, labels = data.evaluation.fetch(torch.arange(2), -1)
    assert labels.tolist() == [0, 1] and images.shape == (2, 1, 16, 16)
    for image, name in zip(images, ("cat/004.png", "dog/004.png"), strict=True):
        assert torch.equal(image, decode(tmp_path / name, data.format))


def test_traits_are_what_is_built(tmp_path: Path) -> None:
    config = image_folder.Config(path=str(noisy(tmp_path, {"cat": 5, "dog": 10})), size=(12, 20))
    entry = DATA.get("image_folder")
    assert entry.traits is not None
    traits, data = entry.traits(config), entry.build(config, 0)
    assert (traits.num_train, traits.num_evaluation) == (len(data.train), len(data.evaluation)) == (12, 3)
    (images, _), labels = data.train.fetch(torch.arange(12), 0)
    assert images.shape[1:] == traits.item_shape == (3, 12, 20)
    assert torch.equal(labels, data.train.targets(torch.arange(12), 0))
    assert "cat 4, dog 8; from" in traits.description
    assert traits.class_names == ("cat", "dog")
    prepared = data.prepare(data.evaluation.fetch(torch.arange(3), -1)[0])
    assert prepared.dtype == torch.float32 and abs(prepared.mean()) < 0.5


FIELDS = {
    "no path": ({"path": None}, "data.path: null; give the folder"),
    "three means for grey": ({"channels": 1, "mean": (1.0, 2.0, 3.0)}, "data.mean: 3 numbers with data.channels=1"),
    "two deviations": ({"deviation": (1.0, 2.0)}, "data.deviation: 2 numbers with data.channels=3; give one"),
    "crop outside": ({"size": (64, 32), "shorter_side": 31}, "data.shorter_side: 31 is less than data.size=32"),
}


@pytest.mark.parametrize(("fields", "text"), FIELDS.values(), ids=FIELDS)
def test_contradictions_are_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        image_folder.traits(image_folder.Config(**{"path": ".", **fields}))


NORMALISED = {
    "of the data set": ({}, [(100 - mean) / deviation for mean, deviation in
                             zip(image_folder.MEAN[3], image_folder.DEVIATION[3], strict=True)]),
    "one number": ({"mean": 90.0, "deviation": 5.0}, [2.0, 2.0, 2.0]),
    "one a channel": ({"mean": (90.0, 95.0, 100.0), "deviation": 5.0}, [2.0, 1.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "values"), NORMALISED.values(), ids=NORMALISED)
def test_channels_are_normalised(tmp_path: Path, fields: dict[str, Any], values: list[float]) -> None:
    for name in ("a", "b"):
        for number in range(5):
            files.write(tmp_path / name / f"{number}.png", files.flat("RGB", (100, 100, 100)))
    data = built(tmp_path, **fields)
    prepared = data.prepare(data.evaluation.fetch(torch.arange(2), -1)[0])
    assert prepared[0, :, 3, 3].tolist() == pytest.approx(values, abs=1e-5)
    assert prepared.is_contiguous(memory_format=torch.channels_last), "as it was decoded"


def test_an_unreadable_file_fails_by_default(tmp_path: Path) -> None:
    damage(noisy(tmp_path, {"cat": 5, "dog": 5}) / "cat/001.jpeg")
    for num_workers in (0, 1):
        with pytest.raises(DataError, match=r"cat/001.jpeg: unreadable image \(.+\); repair or remove it, or replace"):
            take(built(tmp_path), 3, num_workers)


def test_the_next_of_its_class_takes_the_place_of_an_unreadable_file(tmp_path: Path) -> None:
    root = noisy(tmp_path, {"cat": 5, "dog": 5})
    whole = built(root, augment=False, shorter_side=16)
    plain = whole.train.fetch(torch.arange(8), -1)[0]
    for name in ("cat/000.png", "cat/003.jpeg", "dog/004.png"):
        damage(root / name)
    data = built(root, augment=False, shorter_side=16, on_error="skip")
    images, labels = data.train.fetch(torch.arange(8), -1)
    assert labels.tolist() == [0] * 4 + [1] * 4
    assert torch.equal(images[[0, 1, 2, 3]], plain[[1, 1, 2, 1]]), "after the last one of a class comes its first"
    evaluated = data.evaluation.fetch
    with pytest.raises(DataError, match="dog: no readable image of this class is left; give it some"):
        evaluated(torch.arange(2), -1)
    lines = data.notices()
    assert [line.partition(": unreadable")[0][-12:] for line in lines] == [
        "/cat/000.png",
        "cat/003.jpeg",
        "/dog/004.png",
    ]
    assert "(2 of at most 10 in this split)" in lines[1]
    assert data.notices() == []


def test_skipping_is_bounded(tmp_path: Path) -> None:
    root = noisy(tmp_path, {"cat": 8, "dog": 8})
    for name in ("000.png", "001.jpeg", "002.png"):
        damage(root / "cat" / name)
    assert len(take(built(root, on_error="skip", max_errors=3), 4)) == 4
    with pytest.raises(DataError, match=r"number 3 of this split with data\.max_errors=2; repair or remove"):
        take(built(root, on_error="skip", max_errors=2), 4, num_workers=2)


def test_evaluation_does_not_depend_on_workers(tmp_path: Path) -> None:
    data = built(noisy(tmp_path, {"cat": 20, "dog": 20}), val_fraction=0.25)
    for batch_size in (3, 100):
        expected = list(evaluation_batches(data.evaluation, len, batch_size))
        for num_workers in (1, 2):
            batches = list(evaluation_batches(data.evaluation, len, batch_size, num_workers))
            assert [batch.num_targets for batch in batches] == [batch.num_targets for batch in expected]
            for ours, others in zip(batches, expected, strict=True):
                assert torch.equal(ours.inputs, others.inputs) and torch.equal(ours.targets, others.targets)


def test_a_large_set_is_handed_to_workers_without_a_copy_of_its_names(tmp_path: Path) -> None:
    data = built(noisy(tmp_path, {"cat": 5, "dog": 5}))
    source: Any = data.train.source  # type: ignore[attr-defined]
    tensors = [getattr(source, field.name) for field in dataclasses.fields(source)]
    assert sum(isinstance(value, torch.Tensor) for value in tensors) == 4
    assert not any(isinstance(value, (list, tuple)) for value in tensors)
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again.fetch(torch.arange(3), 1)[0], source.fetch(torch.arange(3), 1)[0])


def test_automatic_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_processes(0) == 0 and num_processes(3) == 3
    for cores, number in ((1, 1), (8, 8), (64, MOST_AUTOMATIC)):
        monkeypatch.setattr("os.sched_getaffinity", lambda process, cores=cores: set(range(cores)))
        assert num_processes("auto") == number


class Oracle(nn.Module):
    """Tells `a`, `b`, `c` by their colour, and answers with the output that has that name."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        super().__init__()
        self.outputs = torch.tensor([class_names.index(name) for name in "abc"])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(self.outputs[images.mean((2, 3)).argmax(1)], 3).float()


def test_a_model_that_predicts_the_true_name_scores_one(tmp_path: Path) -> None:
    """B44, end to end: training has a, b, c and val lacks b."""
    files.coloured(tmp_path / "train", {"a": 3, "b": 3, "c": 3})
    files.coloured(tmp_path / "val", {"a": 2, "c": 2})
    run = run_of(
        "data=image_folder", f"data.path={tmp_path}", "data.size=8", "train.batch_size=3", "data.num_workers=0"
    )
    names = run.plan.evidence.data.class_names
    run.executor.forward = dataclasses.replace(run.executor.forward, module=Oracle(names))
    assert loop.evaluate(run)["accuracy"] == 1.0
    run.executor.forward = dataclasses.replace(run.executor.forward, module=Oracle(("a", "c", "b")))
    assert loop.evaluate(run)["accuracy"] == 0.5, "numbering its own folders must show"


SMALL = (
    *("data=image_folder", "data.size=8", "data.shorter_side=8", "data.num_workers=0"),
    *("device=cpu", "model=mlp", "model.hidden=[8]", "train.batch_size=8", "run.dir=run"),
    *("train.epochs=null", "train.log_every=2", "train.eval_every=3", "schedule=constant"),
)


def test_a_checkpoint_file_knows_its_classes_and_resume_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = noisy(tmp_path / "set/train", {"cat": 8, "dog": 8})
    noisy(tmp_path / "set/val", {"cat": 2, "dog": 2})
    words = (*SMALL, "data.path=set")
    assert main([*words, "train.steps=3"]) == 0
    data = runs.state(tmp_path)["data"]
    assert data["class_names"] == data["format"]["class_names"] == ["cat", "dog"]
    go_on = [*words, "train.steps=6", "resume=last"]

    files.write(root / "cat/new.png")
    assert main(go_on) == 3
    assert "data: 17 training samples that are not the 16 the run began with; bring" in capsys.readouterr().err
    (root / "cat/new.png").unlink()

    shutil.move(root / "cat", root / "bird")
    shutil.move(root.parent / "val/cat", root.parent / "val/bird")
    for verb in (go_on, ["evaluate", "run=run", "checkpoint=last"]):
        assert main(verb) == 3
        error = capsys.readouterr().err
        assert "no more 'cat', new 'bird'" in error and error.count("\n") == 1
    shutil.move(root / "bird", root / "cat")
    shutil.move(root.parent / "val/bird", root.parent / "val/cat")
    assert main(go_on) == 0
    assert main(["evaluate", "run=run", "data.val_folder=train"]) == 0


def test_a_run_says_what_it_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = noisy(tmp_path / "set", {"cat": 10, "dog": 10})
    damage(root / "cat/000.png")
    words = (*SMALL, "data.path=set", "train.steps=6")
    assert main(words) == 3
    assert "set/cat/000.png: unreadable image (" in capsys.readouterr().err
    shutil.rmtree("run")
    assert main([*words, "data.on_error=skip"]) == 0
    line = "set/cat/000.png: unreadable image ("
    assert capsys.readouterr().out.count(line) == 1
    assert (tmp_path / "run/train.log").read_text().count(line) == 1


def test_digits_from_a_folder_of_files(tmp_path: Path) -> None:
    """A first use: the digits as PNG and JPEG, trained by one line, past 95 % after a few hundred updates."""
    content = np.load(Path(image_folder.__file__).parent / "files/digits.npz")
    for number, (image, label) in enumerate(zip(content["images"][:1000], content["labels"], strict=False)):
        kind = ("PNG", "JPEG")[number % 2]
        grey = Image.fromarray((image.reshape(8, 8).astype(int) * 255 // content["images"].max()).astype(np.uint8))
        files.write(tmp_path / "mine" / f"digit {label}" / f"{number}.{kind.lower()}", grey.resize((24, 24)), kind)
    words = ("data=image_folder", "data.path=mine", "data.size=16", "data.channels=1", "data.flip=false")
    assert main([*words, "data.smallest_crop=0.6", "train.epochs=12", "device=cpu", "model.width=16"]) == 0
    result = json.loads(Path("outputs/latest/result.json").read_text())
    assert result["eval"]["accuracy"] > 0.95
    assert "10 classes (digit 0 " in Path("outputs/latest/plan.txt").read_text()
