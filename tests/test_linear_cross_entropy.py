"""`kernels=linear_cross_entropy` is the same training as the loss of whole logits, without whole logits."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import AOT, CPU, assert_near, batch_of, state_of, tiny
from test_update import NoReading
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer4090.build import Run
from trainer4090.errors import ConfigError
from trainer4090.executors.chunked_head import ChunkedHead
from trainer4090.loop import evaluate
from trainer4090.precision.amp import float16_autocast

CHUNKED = ("kernels=linear_cross_entropy", "kernels.linear_cross_entropy.chunk_tokens=7")
"""Seven divides neither the 128 tokens of a micro-batch nor its halves."""
MODELS = ["gpt", "char_lstm"]
NUM_CLASSES = 14


@pytest.fixture(autouse=True)
def _text() -> None:
    torch._dynamo.reset()
    Path("text.txt").write_text("".join(chr(97 + number * number % 26) for number in range(3000)))


def words_of(model: str, *words: str) -> tuple[str, ...]:
    return tiny(model, "data.path=text.txt", *words)


def with_words(kernels: tuple[str, ...], others: str) -> tuple[str, ...]:
    """The words of `kernels` with other options beside its own."""
    return (f"kernels=[linear_cross_entropy,{others}]", *kernels[1:])


def assert_equal_training(
    model: str, *words: str, tolerance: float, dtype: torch.dtype = torch.float32, kernels: tuple[str, ...] = CHUNKED
) -> None:
    whole, chunked = (run_of(*words_of(model, *words, *more), dtype=dtype) for more in ((), kernels))
    assert train_updates(chunked, 3) == pytest.approx(train_updates(whole, 3), rel=tolerance)
    assert_near(state_of(whole), state_of(chunked), tolerance)
    assert evaluate(chunked) == pytest.approx(evaluate(whole), rel=tolerance)


CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # words of both, kernels of one
    "chunks": ((), CHUNKED),
    "one_token_a_chunk": ((), (CHUNKED[0], "kernels.linear_cross_entropy.chunk_tokens=1")),
    "one_chunk": ((), CHUNKED[:1]),
    "accumulation": (("train.micro_batch=4", "train.clip_norm=1"), CHUNKED),
    "average": (("ema.decay=0.5", "optimizer=adamw"), CHUNKED),
    "checkpoint": (("memory=checkpoint",), CHUNKED),
    "smoothing": (("loss.label_smoothing=0.1",), CHUNKED),
    "weights": ((f"loss.class_weights={[1 + index % 3 for index in range(NUM_CLASSES)]}",), CHUNKED),
    "ignored": (("loss.ignore_index=4",), CHUNKED),
    "all_ignored_in_a_chunk": (("loss.ignore_index=4",), (CHUNKED[0], "kernels.linear_cross_entropy.chunk_tokens=1")),
    "frozen_head": (("model.freeze=[head]",), CHUNKED),
    "aligned": ((), with_words(CHUNKED, "align")),
    "compiled": ((), (*with_words(CHUNKED, "fused"), *AOT[1:])),
}


@pytest.mark.parametrize(("words", "kernels"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("model", MODELS)
def test_equals_whole_logits(model: str, words: tuple[str, ...], kernels: tuple[str, ...]) -> None:
    assert_equal_training(model, *words, tolerance=1e-12, dtype=torch.float64, kernels=kernels)


def test_equals_whole_logits_without_a_tied_head() -> None:
    assert_equal_training("gpt", "model.tie=false", tolerance=1e-12, dtype=torch.float64)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("precision=fp32", 1e-5), ("precision=bf16", 2.0**-8), ("precision=amp", 2.0**-11)]
)
@pytest.mark.parametrize("model", MODELS)
def test_equals_whole_logits_in_every_precision(model: str, precision: str, tolerance: float) -> None:
    assert_equal_training(model, precision, "train.micro_batch=4", tolerance=tolerance)


@pytest.mark.parametrize("num_ignored", [0, 5, 128])
def test_the_divisor_is_the_number_of_valid_targets(num_ignored: int) -> None:
    """Gradients are made before it is known, for a batch without ignored targets."""
    states = []
    for kernels in ((), CHUNKED):
        run = run_of(*words_of("gpt", *kernels), dtype=torch.float64)
        inputs, targets = run.data.train.fetch(torch.arange(8), 0)
        targets = targets.clone()
        targets.view(-1)[:num_ignored] = -100
        run.executor.step(batch_of(inputs, targets, run.loss.count(targets)), observe=False)
        states.append(state_of(run))
    assert_near(states[0], states[1], 1e-12)


def gradients_in_fp16(seed: float, chunk_tokens: int | None) -> list[torch.Tensor]:
    """Of hidden states and weight, for probabilities of which most are below the smallest number of fp16."""
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(16, 64, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(64, 16, generator=generator))
    hidden = 6 * torch.randn(3, 8, 16, generator=generator)
    hidden.requires_grad_()
    targets = head(hidden).argmax(-1)

    def total_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, -2).float(), wanted.flatten(), reduction="sum")

    start = torch.tensor(seed)
    context = partial(float16_autocast, CPU)
    if chunk_tokens is None:
        with context():
            logits = head(hidden)
        total = total_of(logits, targets)
    else:
        chunked = ChunkedHead(head, [head.weight], total_of, context, lambda _: start, chunk_tokens)
        total = chunked(hidden, targets)
    total.backward(start)
    assert hidden.grad is not None and head.weight.grad is not None
    return [hidden.grad, head.weight.grad]


@pytest.mark.parametrize("seed", [2.0**4, 2.0**10])
def test_gradients_in_fp16_begin_with_the_loss_scale(seed: float) -> None:
    """In one chunk bit for bit; several round their gradients each."""
    whole = gradients_in_fp16(seed, None)
    for chunk_tokens, tolerance in ((24, 0.0), (5, 2.0**-5)):
        for one, other in zip(whole, gradients_in_fp16(seed, chunk_tokens), strict=True):
            largest = one.abs().amax(-1, keepdim=True)  # of a token, of a class
            assert torch.isfinite(one).all()
            assert ((other - one).abs() <= tolerance * largest).all()


class Largest(TorchDispatchMode):
    """Notes the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return made


WIDE = ("model.vocab_size=3000", "data.length=16", "optimizer.weight_decay=0")


def largest_of(run: Run) -> tuple[int, int]:
    """Numbers of the largest tensor of an update, and of an evaluation."""
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    with Largest() as update:
        run.executor.step(batch_of(inputs, targets, targets.numel()), observe=False)
    with Largest() as evaluation:
        evaluate(run)
    return update.numel, evaluation.numel


def test_the_logits_of_all_tokens_never_exist_together() -> None:
    kernels = (CHUNKED[0], "kernels.linear_cross_entropy.chunk_tokens=16")
    (whole, whole_evaluation), (chunked, evaluation) = (
        largest_of(run_of(*words_of("gpt", *WIDE, *more))) for more in ((), kernels)
    )
    assert whole == whole_evaluation == 8 * 16 * 3000
    assert chunked == evaluation == 16 * 3000  # the weight has as many numbers


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_an_update_reads_nothing_back(precision: str) -> None:
    run = run_of(*words_of("gpt", f"precision={precision}", "train.micro_batch=4", *CHUNKED))
    inputs, targets = run.data.train.fetch(torch.arange(8), 0)
    with NoReading():
        for _ in range(2):
            run.executor.step(batch_of(inputs, targets, targets.numel()), observe=True)


@pytest.mark.parametrize("model", MODELS)
def test_a_state_goes_on_under_the_other_kernels(model: str) -> None:
    whole, chunked = run_of(*words_of(model)), run_of(*words_of(model, *CHUNKED))
    train_updates(chunked, 2)
    whole.executor.load_state_dict(chunked.executor.state_dict())
    assert not runs.differences(state_of(whole), state_of(chunked))
    assert evaluate(whole) == pytest.approx(evaluate(chunked), rel=1e-5)


def test_a_run_resumes_exactly_shows_samples_and_writes(tmp_path: Path) -> None:
    words = (*runs.GPT, *CHUNKED, "schedule=constant", "train.eval_every=2", "train.log_samples=1")
    outcomes = []
    for number, lengths in enumerate([(4,), (2, 4)]):
        folder = runs.new_folder(tmp_path / str(number))
        for length in lengths:
            more = ("resume=last",) if length != lengths[0] else ()
            assert runs.train(folder, *words, f"train.steps={length}", *more) == 0
        outcomes.append(runs.state(folder))
        assert runs.train(folder, "generate", "run=run", "device=cpu", "prompt=ab", "tokens=5") == 0
    assert not runs.differences(outcomes[0]["executor"]["model"], outcomes[1]["executor"]["model"])
    assert not runs.differences(outcomes[0]["executor"]["optimizer"], outcomes[1]["executor"]["optimizer"])


def test_the_chunk_follows_the_vocabulary() -> None:
    for vocab_size, said in ((50257, "2,048"), (3000, "32,768")):
        described = plan_of(*words_of("gpt", f"model.vocab_size={vocab_size}", CHUNKED[0], "train.batch_size=96"))
        assert described.kernels.head_chunk_tokens == int(said.replace(",", ""))
    assert "head and loss for 1,536 of a micro-batch's 1,536 tokens at a time" in described.describe()


REFUSED = {
    "no_head": (("model=mlp",), "kernels", "linear_cross_entropy works on a language model's head, and mlp has none"),
    "other_loss": (words_of("gpt", "loss=bce"), "loss", "bce beside kernels=linear_cross_entropy, which is the loss"),
}


@pytest.mark.parametrize(("words", "key", "text"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_such_head_or_loss_is_refused(words: tuple[str, ...], key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        plan_of(*words, CHUNKED[0])
    assert [problem.key for problem in error.value.problems] == [key] and error.value.exit_code == 2


def test_a_sum_goes_backward_once() -> None:
    head, hidden = nn.Linear(2, 3), torch.ones(1, 2, 2, requires_grad=True)
    parameters = list(head.parameters())
    total = ChunkedHead(
        head, parameters, lambda logits, _: logits.sum(), nullcontext, lambda _: torch.tensor(2.0), chunk_tokens=1
    )(hidden, torch.zeros(1, 2))
    (total * 3).backward(retain_graph=True)
    torch.testing.assert_close(hidden.grad, 3 * head.weight.detach().sum(0).expand(1, 2, 2))
    with pytest.raises(TypeError):
        total.backward()
