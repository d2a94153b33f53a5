"""Every combination of axes and models plans or is refused, and every accepted one trains."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from conftest import REPOSITORY, TINY_MODELS, plan_of, run_of, train_updates
from equal_runs import tiny
from torch._dynamo.utils import counters

from trainer4090 import plan, rules
from trainer4090.card import CPU, load
from trainer4090.composition import compose
from trainer4090.errors import ConfigError
from trainer4090.kernels import KERNELS
from trainer4090.memory import MEMORY
from trainer4090.parallelism import PARALLELISM
from trainer4090.parse import parse
from trainer4090.precision import PRECISION

AXES = {
    "precision": PRECISION.names(),
    "memory": MEMORY.names(),
    "kernels": KERNELS.names(),
    "parallelism": PARALLELISM.names(),
}
SMALL_IMAGES = ("data=synthetic_images", "data.height=32", "data.width=32", "data.num_classes=10", "data.pool_size=8")
MODELS = TINY_MODELS | {
    "vit": ("model=vit_b_16", *SMALL_IMAGES),
    "convnext": ("model=convnext_tiny", *SMALL_IMAGES),
    "vgg": ("model=torchvision", "model.arch=vgg11", *SMALL_IMAGES),
}
DETAILS = {
    "fused": ("kernels.fused.backend=aot_eager",),
    "offload": ("memory.offload.min_mib=0",),
    "lowbit": ("memory.lowbit.min_elements=64",),
}
"""Option -> words that let it do something to a tiny model on a CPU."""
TWO_UPDATES = ("train.epochs=null", "train.steps=2")
LARGE = {"vit", "convnext", "vgg"}
"""Models of 28 to 129 million parameters."""
CARDS = (CPU, load(REPOSITORY / "conf" / "card" / "rtx4090.yaml"))


@dataclass(frozen=True)
class Combination:
    """One option of every axis, and a model."""

    precision: str
    memory: str
    kernels: str
    parallelism: str
    model: str

    def __str__(self) -> str:
        return "-".join((self.model, self.precision, self.memory, self.kernels, self.parallelism))

    @property
    def words(self) -> tuple[str, ...]:
        axes = (f"{axis}={getattr(self, axis)}" for axis in AXES)
        details = DETAILS.get(self.memory, ()) + DETAILS.get(self.kernels, ())
        micro_batch = f"train.micro_batch={4 if self.memory == 'step_in_backward' else 2}"
        return (*MODELS[self.model], "train.batch_size=4", micro_batch, *TWO_UPDATES, *axes, *details)


COMBINATIONS = [Combination(*options) for options in itertools.product(*AXES.values(), MODELS)]


@dataclass(frozen=True)
class Refusal:
    """One kind of what cannot be run: an example, the physical reason, and a cure that works."""

    example: tuple[str, ...]
    reason: str
    cure: tuple[str, ...]


REFUSALS = {
    "no_blocks": Refusal(
        ("model=torchvision", "model.arch=vgg11", *SMALL_IMAGES, "memory=checkpoint"),
        "checkpoint works on blocks, and torchvision has none: only lone layers",
        ("memory=none",),
    ),
    "batch_norm_of_one": Refusal(
        ("model=cnn", "train.micro_batch=1"),
        "1 with BatchNorm, which cannot estimate a variance from one sample",
        ("train.micro_batch=2",),
    ),
    "batch_norm_tail_of_one": Refusal(
        ("model=cnn", "data.limit=9", "train.batch_size=4"),
        "9 samples leave a last micro-batch of 1, too few for BatchNorm to estimate a variance",
        ("train.batch_size=5",),
    ),
    "other_items": Refusal(
        ("model=gpt_tiny", "data=digits"),
        "gpt takes tokens, but data=digits gives images",
        ("data=text",),
    ),
    "no_whole_gradient": Refusal(
        ("model=mlp", "memory=step_in_backward", "precision=amp"),
        "amp skips an update whose gradients overflow, but step_in_backward has stepped others",
        ("precision=bf16",),
    ),
}
"""All kinds; another one needs a physical reason that none of these is."""


def kind_of(combination: Combination) -> str | None:
    """The refusal that a combination meets."""
    if combination.memory == "step_in_backward" and combination.precision == "amp":
        return "no_whole_gradient"
    return "no_blocks" if combination.model == "vgg" and combination.memory == "checkpoint" else None


ACCEPTED = [combination for combination in COMBINATIONS if kind_of(combination) is None]


@pytest.mark.parametrize("model", MODELS)
def test_every_combination_plans_or_is_refused(model: str) -> None:
    for combination in (combination for combination in COMBINATIONS if combination.model == model):
        spec = parse(compose(combination.words).tree)
        evidence, kind = plan.gather(spec), kind_of(combination)
        for card in CARDS:
            made = plan.make(spec, card, evidence)
            if kind is None:
                rules.check(made)
                assert made.describe().startswith(f"plan for {card.device_name}")
                continue
            with pytest.raises(ConfigError) as error:
                rules.check(made)
            assert [problem.given for problem in error.value.problems] == [REFUSALS[kind].reason]


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_has_a_reason_and_a_cure_that_works(refusal: Refusal) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(*refusal.example)
    (problem,) = error.value.problems
    assert problem.given == refusal.reason
    assert refusal.cure[0] in problem.remedy or problem.remedy == "at least 2"
    plan_of(*(word for word in refusal.example if word.split("=")[0] != refusal.cure[0].split("=")[0]), *refusal.cure)


def test_kinds_of_refusal_stay_few() -> None:
    assert len(REFUSALS) <= 5


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys; from trainer4090 import plan, rules; from trainer4090.card import CPU\n"
        "from trainer4090.composition import compose; from trainer4090.parse import parse\n"
        "spec = parse(compose(sys.argv[1:]).tree); rules.check(plan.make(spec, CPU, plan.gather(spec)))\n"
        "sys.exit(sorted({'torch', 'torchvision'} & set(sys.modules)) or 0)"
    )
    for combination in (ACCEPTED[0], ACCEPTED[-1]):
        command = [sys.executable, "-c", code, *combination.words]
        subprocess.run(command, check=True, cwd=REPOSITORY)


def pairwise_subset(combinations: list[Combination]) -> list[Combination]:
    """A few combinations that hold every pair of options that all of them hold, greedily chosen."""

    def pairs(combination: Combination) -> set[tuple[tuple[str, str], ...]]:
        return set(itertools.combinations(sorted(vars(combination).items()), 2))

    missing = set().union(*map(pairs, combinations))
    chosen = []
    while missing:
        best = max(combinations, key=lambda combination: len(pairs(combination) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


FAST = pairwise_subset([combination for combination in ACCEPTED if combination.model not in LARGE])
REST = [combination for combination in ACCEPTED if combination not in FAST]


@pytest.mark.parametrize(
    "combination", [*FAST, *(pytest.param(each, marks=pytest.mark.full) for each in REST)], ids=str
)
def test_an_accepted_combination_trains(combination: Combination) -> None:
    torch._dynamo.reset()
    counters.clear()
    run = run_of(*combination.words)
    losses = train_updates(run, 2)
    assert all(loss == loss and loss < 20 for loss in losses)
    assert (counters["stats"]["unique_graphs"] > 0) == (combination.kernels == "fused")
    assert [step.stage.name for step in run.plan.transforms].count("CHECKPOINT") == (combination.memory == "checkpoint")


TOGETHER = [name for name in MEMORY.names() if name != "none"]
LISTS = [*itertools.combinations(TOGETHER, 2), tuple(TOGETHER)]


@pytest.mark.parametrize("kernels", ["eager", pytest.param("fused", marks=pytest.mark.full)])
@pytest.mark.parametrize("options", LISTS, ids="-".join)
def test_memory_options_combine(options: tuple[str, ...], kernels: str) -> None:
    torch._dynamo.reset()
    details = [word for option in (*options, kernels) for word in DETAILS.get(option, ())]
    words = tiny("gpt", f"memory=[{','.join(options)}]", f"kernels={kernels}", *details, batch_size=4)
    losses = train_updates(run_of(*words), 2)
    assert all(loss == loss and loss < 20 for loss in losses)


def test_the_fast_subset_is_small_and_holds_every_option() -> None:
    assert len(FAST) < 40
    for axis, options in AXES.items():
        assert {getattr(combination, axis) for combination in FAST} == set(options)


@pytest.mark.full
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_everything_at_once_trains_with_generated_code(model: str) -> None:
    torch._dynamo.reset()
    losses = train_updates(run_of(*tiny(model, "kernels=fused", "memory=checkpoint", "precision=amp")), 2)
    assert all(loss == loss and loss < 20 for loss in losses)
