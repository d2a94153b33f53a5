"""Every combination of axes and models plans or is refused, and every accepted one trains."""

from __future__ import annotations

import importlib.util
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
    "stepped_before_the_exchange": Refusal(
        ("model=mlp", "memory=step_in_backward", "parallelism=ddp"),
        "step_in_backward steps a parameter before its gradient is averaged over ranks",
        ("parallelism=single",),
    ),
    "exchange_in_a_graph": Refusal(
        ("model=mlp", "kernels=graph", "parallelism=ddp"),
        "graph beside parallelism=ddp, whose buckets are exchanged from hooks that a replay does not call",
        ("parallelism=single",),
    ),
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
    "no_head": Refusal(
        ("model=mlp", "kernels=linear_cross_entropy"),
        "linear_cross_entropy works on a language model's head, and mlp has none",
        ("kernels=eager",),
    ),
    "forward_replaced": Refusal(
        ("model=mlp", "kernels=script", "memory=checkpoint"),
        "script compiles forwards as their classes have them, and another option replaces some of these",
        ("memory=none",),
    ),
    "random_recomputation": Refusal(
        ("model=cnn", "model.dropout=0.1", "kernels=graph", "memory=checkpoint"),
        "graph with memory=checkpoint and dropout: the state of the random numbers cannot be set back while a graph is "
        "captured",
        ("memory=none",),
    ),
    "no_whole_gradient": Refusal(
        ("model=mlp", "memory=step_in_backward", "precision=amp"),
        "amp skips an update whose gradients overflow, but step_in_backward has stepped others",
        ("precision=bf16",),
    ),
    "hooks_of_backward": Refusal(
        ("model=mlp", "memory=step_in_backward", "kernels=graph"),
        "graph beside memory=step_in_backward, which steps from hooks of backward",
        ("kernels=eager",),
    ),
    "copies_to_the_host": Refusal(
        ("model=mlp", "memory=offload", "kernels=graph"),
        "graph beside memory=offload: copies to the host go by an order that is found out anew in every update",
        ("memory=checkpoint",),
    ),
}
"""All kinds; another one needs a physical reason that none of these is."""


LANGUAGE_MODELS = {"gpt", "char_lstm"}
WITH_DROPOUT = {"cnn", "convnext", "vgg"}
"""By default, stochastic depth included."""


def kinds_of(combination: Combination) -> list[str]:
    """The refusals that a combination meets, in the order of the rules."""
    recomputes = combination.memory == "checkpoint"
    met = {
        "no_blocks": combination.model == "vgg" and recomputes,
        "no_whole_gradient": combination.memory == "step_in_backward" and combination.precision == "amp",
        "random_recomputation": combination.kernels == "graph" and recomputes and combination.model in WITH_DROPOUT,
        "hooks_of_backward": combination.kernels == "graph" and combination.memory == "step_in_backward",
        "copies_to_the_host": combination.kernels == "graph" and combination.memory == "offload",
        "no_head": combination.kernels == "linear_cross_entropy" and combination.model not in LANGUAGE_MODELS,
        "forward_replaced": combination.kernels == "script" and (recomputes or combination.precision == "fp8"),
        "stepped_before_the_exchange": combination.memory == "step_in_backward" and combination.parallelism == "ddp",
        "exchange_in_a_graph": combination.kernels == "graph" and combination.parallelism == "ddp",
    }
    return [kind for kind, holds in met.items() if holds]


WITHOUT_WIDE_LAYERS = ("cnn", "resnet")
"""Their only linear layer is the output, so fp8 has nothing to work on, as is seen when they are built."""


def refused_when_built(combination: Combination) -> bool:
    """Whether it plans, but has a part that the chosen options cannot work on; `test_fp8.py` has reason and cure."""
    return combination.precision == "fp8" and combination.model in WITHOUT_WIDE_LAYERS


ACCEPTED = [each for each in COMBINATIONS if not kinds_of(each) and not refused_when_built(each)]
NEEDS = {"fp8": "torchao"}
"""Option -> optional package, without which its combinations are planned and not trained."""


@pytest.mark.parametrize("model", MODELS)
def test_every_combination_plans_or_is_refused(model: str) -> None:
    for combination in (combination for combination in COMBINATIONS if combination.model == model):
        spec = parse(compose(combination.words).tree)
        evidence, kinds = plan.gather(spec), kinds_of(combination)
        for card in CARDS:
            made = plan.make(spec, card, evidence)
            if not kinds:
                rules.check(made)
                assert made.describe().startswith(f"plan for {card.device_name}")
                continue
            with pytest.raises(ConfigError) as error:
                rules.check(made)
            reasons = [REFUSALS[kind].reason.replace("mlp", spec.model.name) for kind in kinds]
            assert [problem.given for problem in error.value.problems] == reasons


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_has_a_reason_and_a_cure_that_works(refusal: Refusal) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(*refusal.example)
    (problem,) = error.value.problems
    assert problem.given == refusal.reason
    assert refusal.cure[0] in problem.remedy or problem.remedy == "at least 2"
    plan_of(*(word for word in refusal.example if word.split("=")[0] != refusal.cure[0].split("=")[0]), *refusal.cure)


def test_kinds_of_refusal_stay_few() -> None:
    assert len(REFUSALS) <= 12


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


FIRST = {
    "precision": {"fp32", "tf32", "amp", "bf16"},
    "memory": {"none", "checkpoint"},
    "kernels": {"eager", "fused"},
    "parallelism": {"single", "ddp"},
}
"""Options whose whole product is trained; of all others every pair."""


def of_the_first(combination: Combination) -> bool:
    return all(getattr(combination, axis) in options for axis, options in FIRST.items())


FAST = pairwise_subset([combination for combination in ACCEPTED if combination.model not in LARGE])
PAIRS_OF_ALL = pairwise_subset(ACCEPTED)
REST = [each for each in ACCEPTED if (of_the_first(each) or each in PAIRS_OF_ALL) and each not in FAST]


@pytest.mark.parametrize(
    "combination", [*FAST, *(pytest.param(each, marks=pytest.mark.full) for each in REST)], ids=str
)
def test_an_accepted_combination_trains(combination: Combination) -> None:
    for option, package in NEEDS.items():
        if option in vars(combination).values() and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
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
    assert len(FAST) < 50
    for axis, options in AXES.items():
        assert {getattr(combination, axis) for combination in FAST} == set(options)


@pytest.mark.full
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_everything_at_once_trains_with_generated_code(model: str) -> None:
    torch._dynamo.reset()
    losses = train_updates(run_of(*tiny(model, "kernels=fused", "memory=checkpoint", "precision=amp")), 2)
    assert all(loss == loss and loss < 20 for loss in losses)
