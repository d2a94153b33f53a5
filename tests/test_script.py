"""`kernels=script` is the same training as `kernels=eager`: parameters, buffers, names and modes of the model."""

from __future__ import annotations

import sys
from copy import deepcopy
from itertools import product

import pytest
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import WITH_DROPOUT, assert_near, assert_same, state_of, tiny
from torch import nn

from trainer4090.build import Run
from trainer4090.errors import ConfigError, MachineError
from trainer4090.kernels.script import script_parts
from trainer4090.loop import evaluate
from trainer4090.records import Part, Site

SCRIPT = "kernels=script"
SITE = Site(0, torch.device("cpu"))
TOLERANCE = {"fp32": 0.0, "bf16": 2.0**-7, "amp": 2.0**-10}
"""TorchScript's autocast rounds in other places than torch's, where several operations follow a matrix product."""
GENTLE = ("schedule=constant", "optimizer.lr=0.01", "train.clip_norm=1")
MODELS = ("mlp", "cnn", "gpt", "char_lstm", "resnet")
FAST = {("mlp", "fp32"), ("mlp", "amp"), ("cnn", "fp32"), ("cnn", "bf16"), ("gpt", "fp32"), ("char_lstm", "fp32")}
"""TorchScript compiles for itself at the first two updates; the others are in the full tier."""


def scripted(run: Run) -> list[str]:
    """Names of the modules whose forward is TorchScript."""
    named = run.executor.forward.module.named_modules()
    return [name for name, module in named if "forward" in vars(module)]


@pytest.mark.parametrize(
    ("model", "precision"),
    [pair if pair in FAST else pytest.param(*pair, marks=pytest.mark.full) for pair in product(MODELS, TOLERANCE)],
)
def test_equals_eager(model: str, precision: str) -> None:
    words = tiny(model, *GENTLE, *WITH_DROPOUT.get(model, ()), f"precision={precision}", "train.micro_batch=4")
    words += ("model.width=32",) if model == "char_lstm" else ()
    if (model, precision) == ("resnet", "amp"):
        words += ("precision.initial_scale=1024",)
    eager, run = run_of(*words), run_of(*words, SCRIPT)
    assert scripted(run) == (["layers.0.cell", "layers.1.cell"] if model == "char_lstm" else [""])
    torch.manual_seed(1)
    losses = train_updates(eager, 4)
    torch.manual_seed(1)
    tolerance = TOLERANCE[precision] or (1e-5 if model == "char_lstm" else 0.0)
    assert train_updates(run, 4) == pytest.approx(losses, rel=tolerance)
    if tolerance:
        assert_near(state_of(eager), state_of(run), tolerance)
    else:
        assert_same(state_of(eager), state_of(run))
    evaluated, reference = evaluate(run), evaluate(eager)
    assert evaluated == {name: pytest.approx(value, abs=max(tolerance, 1e-12) * 8) for name, value in reference.items()}


def test_state_goes_both_ways() -> None:
    run, eager = run_of(*tiny("cnn", SCRIPT, "model.dropout=0")), run_of(*tiny("cnn", "model.dropout=0"))
    train_updates(run, 2)
    assert int(state_of(run)["blocks.0.norm.num_batches_tracked"]) == 2
    eager.executor.load_state_dict(deepcopy(run.executor.state_dict()))  # as from a file: no shared memory
    assert train_updates(eager, 1) == train_updates(run, 1)
    before = state_of(run)
    with torch.no_grad():
        for parameter in run.executor.forward.module.parameters():
            parameter.zero_()
    assert evaluate(run)["loss"] == pytest.approx(2.302585, abs=1e-5)
    run.executor.forward.module.load_state_dict(before)


def test_frozen_parts_stay_in_evaluation_mode() -> None:
    words = tiny("cnn", "model.freeze=[blocks.0]", "model.dropout=0.2")
    eager, run = run_of(*words), run_of(*words, SCRIPT)
    start = state_of(run)
    for _ in range(2):  # before an evaluation and after it
        torch.manual_seed(1)
        losses = train_updates(eager, 2)
        torch.manual_seed(1)
        assert train_updates(run, 2) == losses
        assert evaluate(run) == evaluate(eager)
    now = state_of(run)
    assert_same(state_of(eager), now)
    assert all(torch.equal(start[name], now[name]) for name in start if name.startswith("blocks.0."))


@pytest.mark.parametrize("words", [("kernels=[script,sdpa]", "kernels.sdpa.backend=math"),
                                   ("kernels=[fused,script]", "kernels.fused.compile=false")],
                         ids=["sdpa", "fused"])  # fmt: skip
def test_beside_other_kernels(words: tuple[str, ...]) -> None:
    eager, run = run_of(*tiny("gpt", *GENTLE)), run_of(*tiny("gpt", *GENTLE, *words))
    assert train_updates(run, 3) == pytest.approx(train_updates(eager, 3), rel=1e-5)
    assert scripted(run) == [""]


REFUSALS = {
    "checkpoint": ((SCRIPT, "memory=checkpoint"), "another option replaces some of these", "memory=none"),
    "fp8": ((SCRIPT, "precision=fp8"), "another option replaces some of these", "precision=amp or bf16"),
    "align": (("kernels=[script,align]",), "another option replaces some of these", "fused in place of script"),
    "compiled": (("kernels=[fused,script]",), "script beside torch.compile", "kernels.fused.compile=false"),
}


@pytest.mark.parametrize(("words", "reason", "cure"), REFUSALS.values(), ids=REFUSALS)
def test_what_replaces_a_forward_is_refused(words: tuple[str, ...], reason: str, cure: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(*tiny("mlp", *words))
    (problem,) = error.value.problems
    assert problem.key == "kernels" and reason in problem.given and cure in problem.remedy


class Indescribable(nn.Module):
    """Takes any number of arguments, which TorchScript does not know."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return sum(inputs)  # type: ignore[return-value]


def test_a_model_that_torchscript_cannot_express_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"cannot express Indescribable \(.*variable number.*; use kernels=fused"):
        script_parts((Part(Indescribable(), ()),), SITE)


def test_a_torch_without_torchscript_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.jit._recursive", None)
    with pytest.raises(MachineError, match="has no TorchScript any more; use kernels=fused"):
        run_of(*tiny("mlp", SCRIPT))
