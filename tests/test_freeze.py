"""What is frozen stays bit for bit as it was, statistics included; everything else is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs
import torch
from conftest import run_of, train_updates
from equal_runs import AOT, assert_near, assert_same, state_of, tiny

from trainer4090.build import Run
from trainer4090.errors import ConfigError
from trainer4090.finetune.freeze import freeze
from trainer4090.loop import evaluate

HARD = ("optimizer.momentum=0.9", "optimizer.weight_decay=0.1", "schedule=constant", "optimizer.lr=0.05")
"""Whatever moves a parameter without a gradient does it here."""
VIT = ("model=vit_b_16", "data=synthetic_images", "data.height=16", "data.width=16", "data.num_classes=10",
       "data.pool_size=4", "data.num_evaluation=4", "train.batch_size=2", "train.epochs=null",
       "train.steps=9")  # fmt: skip
CASES = {
    "resnet": (tiny("resnet"), "[stem,layer1,layer3.1]", ("conv1", "bn1", "layer1", "layer3.1")),
    "cnn": (tiny("cnn"), "[stem,blocks.1]", ("blocks.0", "blocks.1")),
    "cnn-head": (tiny("cnn"), "[head]", ("head",)),
    "gpt": (tiny("gpt", "model.tie=false"), "[stem,blocks.0]", ("token_", "position_", "blocks.0")),
    "gpt-tied": (tiny("gpt"), "[stem]", ("token_", "position_", "head")),
    "char_lstm": (tiny("char_lstm"), "[stem]", ("embedding",)),
    "vit": (VIT, "[stem,encoder.layers.encoder_layer_0]",
            ("class_token", "conv_proj", "encoder.pos_embedding", "encoder.layers.encoder_layer_0.")),
}  # fmt: skip
"""Words of a run, what is frozen, and how the names of frozen parameters begin."""
PART = ("model.freeze=[stem,blocks.0]", "model.tie=false")


def frozen_names(run: Run) -> set[str]:
    named = run.executor.forward.module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
@pytest.mark.parametrize("case", CASES)
def test_frozen_stays_and_the_rest_moves_in_the_first_update(case: str, memory: str) -> None:
    words, freeze, begins = CASES[case]
    run = run_of(*words, *HARD, f"model.freeze={freeze}", f"memory={memory}")
    if case == "vit":  # torchvision's head starts at zero, which hands no gradient on
        torch.nn.init.normal_(run.executor.forward.module.get_parameter("heads.head.weight"))
    before = state_of(run)
    parameters = dict(run.executor.forward.module.named_parameters(remove_duplicate=False))
    frozen = {name for name in parameters if name.startswith(begins)}
    assert frozen_names(run) == frozen
    train_updates(run, 1)
    after = state_of(run)
    assert not [name for name in set(parameters) - frozen if torch.equal(after[name], before[name])]
    evaluate(run)
    train_updates(run, 2)
    after = state_of(run)
    assert not [name for name in after if name.startswith(begins) and not torch.equal(after[name], before[name])]
    buffers = set(after) - set(parameters)
    assert not [name for name in buffers if not name.startswith(begins) and torch.equal(after[name], before[name])], (
        "statistics of trained parts move"
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_frozen_parameters_are_in_no_group(optimizer: str) -> None:
    run = run_of(*tiny("cnn", f"optimizer={optimizer}", "model.freeze=[blocks.0,blocks.1]"))
    train_updates(run, 1)
    saved = run.executor.state_dict()["optimizer"]
    assert sum(len(group["params"]) for group in saved["param_groups"]) == len(saved["state"]) == 5


def test_frozen_dropout_is_off() -> None:
    run = run_of(*tiny("cnn", "model.dropout=0.5", "model.freeze=[blocks]"))
    inputs = run.executor.forward.prepare(run.data.train.fetch(torch.arange(8), -1)[0])
    assert torch.equal(run.executor.forward(inputs), run.executor.forward(inputs))


@pytest.mark.parametrize("evaluated", [False, True])
def test_modes(evaluated: bool) -> None:
    run = run_of(*tiny("resnet", "model.freeze=[stem,layer1]"))
    if evaluated:
        evaluate(run)
    module = run.executor.forward.module
    training = {name.partition(".")[0] for name, child in module.named_modules() if child.training}
    assert {"conv1", "bn1", "layer1"}.isdisjoint(training) and {"", "layer2", "fc"} <= training


@pytest.mark.parametrize(
    "words",
    [
        ("memory=checkpoint",),
        ("train.micro_batch=4", "train.clip_norm=0.5"),
        ("precision=amp", "memory=checkpoint"),
        ("ema.decay=0.5",),
    ],
    ids=runs.shown,
)
def test_other_axes_train_the_same_frozen_model(words: tuple[str, ...]) -> None:
    """Accumulation, clipping and the average see trained parameters alone; recomputing changes no bit."""
    plain = tuple(word for word in words if not word.startswith(("memory", "train.micro", "ema")))
    first, second = (run_of(*tiny("gpt", *HARD, *PART, *choice)) for choice in (plain, words))
    losses = train_updates(first, 3), train_updates(second, 3)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_near(state_of(first), state_of(second), 1e-5)
    average = second.executor.average
    if average is not None:
        frozen, averages = frozen_names(second), average.state_dict()
        assert_same({name: averages[name] for name in frozen}, {name: state_of(second)[name] for name in frozen})


@pytest.mark.parametrize(("model", "words"), [("gpt", PART), ("cnn", ("model.freeze=[stem]", "model.dropout=0"))])
@pytest.mark.parametrize("memory", ["none", "checkpoint"])
def test_compiled_trains_the_same_frozen_model(model: str, words: tuple[str, ...], memory: str) -> None:
    torch._dynamo.reset()
    eager, compiled = (
        run_of(*tiny(model, *HARD, *words, f"memory={memory}", *kernels)) for kernels in (("kernels=eager",), AOT)
    )
    for run in (eager, compiled):
        train_updates(run, 1)
        evaluate(run)
    assert train_updates(eager, 2) == pytest.approx(train_updates(compiled, 2), rel=1e-4)
    assert_near(state_of(eager), state_of(compiled), 1e-4)


def test_a_frozen_backbone_lowers_the_flops() -> None:  # case B53
    first, second, head = 64 * 16, 16 * 16, 16 * 10
    forward = 2 * (first + second + head)
    whole = run_of(*tiny("mlp")).flops_per_sample
    frozen = run_of(*tiny("mlp", "model.freeze=[blocks]")).flops_per_sample
    assert whole == forward + forward + 2 * (second + head)
    assert frozen == forward + 2 * head


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (tiny("resnet", "model.freeze=[layr1]"), r"'layr1' names no part.* did you mean layer1\? blocks: layer1\.0, "),
        (tiny("cnn", "model.freeze=[stem,blocks.7]"), r"'blocks\.7' names .* blocks\.0, blocks\.1, blocks\.2 and stem"),
        (tiny("cnn", "model.freeze=[blocks.0.dropout]"), r"'blocks\.0\.dropout' holds no parameters"),
        (tiny("cnn", "model.freeze=['']"), r"'' names no part"),
        (tiny("cnn", "model.freeze=[blocks,head]"), r"\[blocks, head\] freezes every parameter; leave one of"),
        (tiny("gpt", "model.freeze=[token_embedding.weight]"), r"names no part .* did you mean token_embedding\?"),
    ],
    ids=lambda value: value[-1].partition("=")[2] if isinstance(value, tuple) else None,
)
def test_refusals(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        run_of(*words)


def test_all_typos_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(*tiny("cnn", "model.freeze=[a,head,b]"))
    assert [problem.given.partition(" ")[0] for problem in caught.value.problems] == ["'a'", "'b'"]


def test_a_model_without_blocks_has_no_stem() -> None:
    with pytest.raises(ConfigError, match=r"this model has no blocks; parts: 0, 1$"):
        freeze(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()), (), ["stem"], print)


def test_what_is_frozen_is_told() -> None:
    told: list[str] = []
    module = run_of(*tiny("gpt")).executor.forward.module
    freeze(module, ("blocks.0", "blocks.1"), ["stem"], told.append)
    assert "parameters are frozen" in told[0] and "head.weight is frozen too" in told[1]


def test_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole, cut = (runs.new_folder(tmp_path / name) for name in ("whole", "cut"))
    words = (*runs.CNN, "model.freeze=[stem]", "ema.decay=0.9")
    assert runs.train(whole, *words) == 0
    with runs.signalled(17):
        assert runs.train(cut, *words) == 143
    assert runs.train(cut, "resume=last", "run.dir=run") == 0
    assert runs.differences(runs.outcome(cut), runs.outcome(whole)) == []
    assert runs.train(cut, "resume=last", "run.dir=run", "model.freeze=[]", "train.steps=50") == 2
