"""`kernels=sdpa`: the backend that was asked for computes attention, in recomputation too, or the run is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, plan_of, run_of, train_updates
from equal_runs import assert_near, assert_same, state_of, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from trainer4090 import failure
from trainer4090.attention import allowed_backends
from trainer4090.card import CPU, Card, load
from trainer4090.errors import ConfigError
from trainer4090.kernels import fused
from trainer4090.loop import evaluate

RTX4090 = load(REPOSITORY / "conf" / "card" / "rtx4090.yaml")
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
SOFTMAX = "aten._safe_softmax.default"
"""Of attention by plain operations, nothing else has one."""
ALL = ("flash", "efficient", "cudnn", "math")


def sdpa(backend: str, *kernels: str) -> tuple[str, ...]:
    return (f"kernels=[{','.join((*kernels, 'sdpa'))}]", f"kernels.sdpa.backend={backend}")


class Operations(TorchDispatchMode):
    """Counts what reaches the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.counts[str(function)] = self.counts.get(str(function), 0) + 1
        return function(*arguments, **(named or {}))


@contextmanager
def operations() -> Iterator[dict[str, int]]:
    with Operations() as mode:
        yield mode.counts


BACKENDS = {"flash": (2, 0), "math": (0, 2), "auto": (2, 0)}
"""Backend -> kernels of flash attention and softmaxes of one forward through two blocks."""


@pytest.mark.parametrize(("memory", "forwards"), [("none", 1), ("checkpoint", 2)])
@pytest.mark.parametrize(("backend", "counts"), BACKENDS.items(), ids=BACKENDS)
def test_the_backend_is_active(backend: str, counts: tuple[int, int], memory: str, forwards: int) -> None:
    run = run_of(*tiny("gpt", *sdpa(backend), f"memory={memory}"))
    with operations() as seen:
        train_updates(run, 1)
    assert (seen.get(FLASH, 0), seen.get(SOFTMAX, 0)) == tuple(forwards * count for count in counts)
    assert seen.get(FLASH_BACKWARD, 0) == counts[0]
    assert allowed_backends() == ALL
    with operations() as seen:
        evaluate(run)
    assert (seen.get(FLASH, 0) > 0, seen.get(SOFTMAX, 0) > 0) == (counts[0] > 0, counts[1] > 0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_backends_are_the_same_training(precision: str) -> None:
    words = tiny("gpt", f"precision={precision}", "optimizer.lr=0.01", "schedule=constant")
    plain, auto, flash, math = (run_of(*words, *kernels) for kernels in ((), sdpa("auto"), sdpa("flash"), sdpa("math")))
    losses = train_updates(plain, 3)
    tolerance = 1e-5 if precision == "fp32" else 2.0**-7
    for run in (auto, flash):
        assert train_updates(run, 3) == losses
        assert_same(state_of(run), state_of(plain))
    assert train_updates(math, 3) == pytest.approx(losses, rel=tolerance)
    assert_near(state_of(plain), state_of(math), tolerance)


def test_each_backend_has_its_own_key_in_the_compilers_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own key has the graph before attention is taken apart, which is the same for all of them."""
    keys = []

    def compiled(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        keys.append(torch.compiler.config.cache_key_tag)
        return graph.forward

    monkeypatch.setattr(fused, "require_compiler", lambda device_type: None)
    lookup = torch._dynamo.lookup_backend
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: {"inductor": compiled}.get(name) or lookup(name))
    for backend in ("flash", "math", "auto"):
        torch._dynamo.reset()
        train_updates(run_of(*tiny("gpt", *sdpa(backend, "fused"))), 1)
    assert len(set(keys[::2])) == len(keys[::2]) == 3  # between them the keys of the loss


@pytest.mark.full
def test_generated_code_has_the_backend() -> None:
    counts = []
    for backend in ("math", "flash"):
        torch._dynamo.reset()
        run = run_of(*tiny("gpt", *sdpa(backend, "fused")))
        train_updates(run, 1)
        with operations() as seen:
            train_updates(run, 1)
        counts.append(seen.get(FLASH, 0))
    assert counts == [0, 2]


REFUSALS = {  # card, words, reason, cure
    "efficient-cpu": (CPU, sdpa("efficient"), "efficient, which a CPU does not have", "kernels.sdpa.backend=flash"),
    "cudnn-cpu": (CPU, sdpa("cudnn"), "cudnn, which a CPU does not have", "kernels.sdpa.backend=math"),
    "flash-fp32": (RTX4090, sdpa("flash"), "precision=fp32 keeps fp32 tensors", "kernels.sdpa.backend=efficient"),
    "cudnn-tf32": (RTX4090, (*sdpa("cudnn"), "precision=tf32"), "precision=tf32 keeps fp32", "precision=bf16"),
}


@pytest.mark.parametrize(("card", "words", "reason", "cure"), REFUSALS.values(), ids=REFUSALS)
def test_a_backend_that_is_not_there(card: Card, words: tuple[str, ...], reason: str, cure: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(*tiny("gpt", *words), card=card)
    (problem,) = error.value.problems
    assert problem.key == "kernels.sdpa.backend" and reason in problem.given
    assert any(part in problem.remedy for part in cure.split("=")[-1:])
    plan_of(*tiny("gpt", *words), cure, card=card)


def test_a_model_without_attention_is_told() -> None:
    run = run_of(*tiny("cnn", *sdpa("math", "fused"), "kernels.fused.compile=false"))
    assert "kernels.sdpa.backend: asked math, got nothing to choose for" in run.plan.describe()
    assert not run.plan.kernels.contexts
    described = plan_of(*tiny("gpt", *sdpa("flash"))).describe()
    assert "kernels       sdpa: attention by flash alone" in described and "notice" not in described


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's reasons, which come first
def test_an_attention_that_the_backend_cannot_compute() -> None:
    """A CPU's flash attention has no dropout."""
    run = run_of(*tiny("gpt", *sdpa("flash"), "model.dropout=0.1"))
    with pytest.raises(RuntimeError) as raised:
        train_updates(run, 1)
    error = failure.translated(raised.value, run.plan, training=True)
    assert isinstance(error, ConfigError) and "use kernels.sdpa.backend=auto, or math" in str(error)
    train_updates(run_of(*tiny("gpt", *sdpa("math"), "model.dropout=0.1")), 1)
