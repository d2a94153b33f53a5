"""The plan: what it says, the order of its steps, and the rules across axes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from conftest import plan_of

from trainer4090.errors import ConfigError, DataError, Problem
from trainer4090.records import Settings, merge

DESCRIPTION = {
    "scale": (("precision=amp",), "precision     amp: matrix products in float16, loss scaled by 65536 at first"),
    "fused_for_fp16": (("precision=amp",), "OPTIMIZER: sgd, fused kernels (fp16 skips an overflowed update"),
    "default_optimizer": ((), "OPTIMIZER: sgd, torch's default kernels, schedule onecycle"),
    "average": (("ema.decay=0.99",), "EMA: parameters averaged with decay 0.99"),
    "segment": (("memory=checkpoint",), "step 1        CHECKPOINT: recompute activations in segments of 2 blocks"),
    "epochs": (("train.epochs=3", "train.batch_size=64"), "length        69 updates, 23 an epoch"),
    "tf32": (("precision=tf32",), "precision: asked tf32, got float32: TF32 is a mode of NVIDIA tensor cores"),
}


@pytest.mark.parametrize(("words", "text"), DESCRIPTION.values(), ids=DESCRIPTION)
def test_description(words: tuple[str, ...], text: str) -> None:
    assert text in plan_of(*words).describe()


def test_steps_stand_in_the_order_of_their_stages() -> None:
    steps = plan_of("memory=checkpoint", "kernels=fused").transforms
    assert [step.stage.name for step in steps] == ["REPLACE", "CHECKPOINT", "COMPILE"]


PROBLEMS = {
    "batch": (("train.batch_size=12", "train.micro_batch=5"), "train.micro_batch: 5 does not divide "
              "train.batch_size=12; the nearest that do: 4 or 6"),
    "micro_batch_too_large": (("train.batch_size=12", "train.micro_batch=24"), "the nearest that do: 12"),
    "two_lengths": (("train.steps=5",), "train.epochs: 12 beside train.steps=5; give one of them"),
    "no_length": (("train.epochs=null",), "train.steps: null beside train.epochs=null; give one of them"),
    "cards": (("cards=2",), "cards: 2, but parallelism=single uses 1; use cards=1"),
    "device": (("device=gpu",), "device: 'gpu'; allowed is auto, cpu, cuda or cuda:N"),
    "outputs": (("model.num_classes=7",), "model.num_classes: 7, but data=digits has 10 classes; at least 10, or auto"),
    "one_sample": (("train.batch_size=1",), "train.batch_size: 1 with BatchNorm"),
    "tail_of_one": (("data.limit=13", "train.batch_size=2"), "use train.batch_size=5 with train.micro_batch=null"),
    "tail_of_one_in_three": (("data.limit=3", "train.batch_size=2"), "use train.batch_size=3"),
    "lists": (("memory=[none,checkpoint]",), "memory: [none, checkpoint] holds none, which means none of them; drop"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "text"), PROBLEMS.values(), ids=PROBLEMS)
def test_problem(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(*words)
    assert text in str(error.value)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        plan_of("model=mlp", "train.micro_batch=5", "cards=2", "model.num_classes=7")
    assert [problem.key for problem in error.value.problems] == ["train.micro_batch", "cards", "model.num_classes"]


def test_a_tail_of_one_that_is_never_reached_is_no_problem() -> None:
    plan_of("data.limit=13", "train.batch_size=4", "train.epochs=null", "train.steps=3")


def test_fewer_samples_than_a_batch_are_an_error_of_the_data() -> None:  # case B16
    with pytest.raises(DataError, match="13 training samples are fewer than"):
        plan_of("data.limit=13", "train.batch_size=64")


@dataclass(frozen=True)
class Record:
    """As an axis has them."""

    size: int = 0
    parts: tuple[str, ...] = ()
    settings: Settings = Settings()  # noqa: RUF009


def test_records_merge() -> None:
    problems: list[Problem] = []
    flags = Settings(flags=(("a", True),))
    merged = merge("memory", [("a", Record(1, ("x",))), ("b", Record(parts=("y",), settings=flags))], problems)
    assert (merged, problems) == (Record(1, ("x", "y"), flags), [])


def test_two_claims_of_one_fact_are_a_problem() -> None:
    problems: list[Problem] = []
    merge("memory", [("a", Record(1)), ("b", Record(2))], problems)
    assert [str(problem) for problem in problems] == ["memory: a and b both decide size; keep one of them"]
