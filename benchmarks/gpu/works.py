"""What is measured: works, and who does them. `ours` are words of the command line, all others loops of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

QUIET = ("train.epochs=null", "train.eval_every=1000000", "train.checkpoint_every=1000000")
"""No evaluation and no checkpoint file but the last one; both are outside of what is timed anyway."""
RESNET = ("recipe=resnet50", "kernels=[fused,graph]", *QUIET)
GPT2 = ("recipe=gpt2_124m", "kernels=[fused,graph]", "model.vocab_size=50304", "train.clip_norm=null", *QUIET)


@dataclass(frozen=True)
class Work:
    """One row of the table: every contender trains the same model on batches of the same shape."""

    title: str
    unit: str
    ours: tuple[str, ...]
    """TensorBoard is on, as in every run; the progress bar too."""
    least: Mapping[str, float]
    """Contender -> what our rate has to be of its rate at least."""
    goal: Mapping[str, float] = field(default_factory=dict)
    text_repeats: int = 0
    """For a language model: copies of the default text in the file that it reads, so that no epoch ends."""


def _resnet(batch_size: int, steps: int, log_every: int) -> tuple[str, ...]:
    sizes = (f"train.batch_size={batch_size}", f"data.num_evaluation={batch_size}", f"data.pool_size={batch_size}")
    return (*RESNET, *sizes, f"train.steps={steps}", f"train.log_every={log_every}")


def _gpt2(batch_size: int, steps: int) -> tuple[str, ...]:
    return (*GPT2, f"train.batch_size={batch_size}", f"train.steps={steps}", "train.log_every=20")


WORKS = {
    "mlp": Work(
        "MLP 784-512-512-10, batch 256, bf16: bound by launches",
        "images",
        (
            *("model=mlp", "data=synthetic_images", "data.channels=1", "data.height=28", "data.width=28"),
            *("data.num_classes=10", "data.num_evaluation=256", "precision=bf16", "kernels=[fused,graph]"),
            *("optimizer=adamw", "schedule=constant", "train.batch_size=256", "train.steps=6000"),
            *("train.log_every=100", *QUIET),
        ),
        least={"mlp_captured": 0.95, "mlp_lightning": 20.0, "mlp_accelerate": 15.0},
        goal={"mlp_captured": 1.0},
    ),
    "lstm": Work(
        "hand-written LSTM cell, 128 steps, batch 64, fp32",
        "tokens",
        (
            *("recipe=char_lstm", "kernels=[fused,graph]", "model.num_layers=1", "optimizer.lr=0.001"),
            *("model.vocab_size=128", "train.clip_norm=null", "train.steps=300", "train.log_every=50", *QUIET),
        ),
        least={"lstm_captured": 0.95},
        goal={"lstm_captured": 1.5},
        text_repeats=10,
    ),
    "gpt2_16": Work(
        "GPT-2 124M, 16 sequences of 1024, bf16",
        "tokens",
        _gpt2(16, 120),
        least={"gpt2_captured_16": 0.99},
        text_repeats=10,
    ),
    "gpt2_64": Work(
        "GPT-2 124M, 64 sequences of 1024, bf16",
        "tokens",
        _gpt2(64, 60),
        least={"gpt2_captured_64": 0.99},
        text_repeats=12,
    ),
    "resnet50_32": Work(
        "ResNet-50 at 224, batch 32, fp16",
        "images",
        _resnet(32, 400, 100),
        least={"resnet50_eager_32": 2.8},
        goal={"resnet50_eager_32": 3.2, "resnet50_captured_32": 1.0},
    ),
    "resnet50_256": Work(
        "ResNet-50 at 224, batch 256, fp16",
        "images",
        _resnet(256, 120, 40),
        least={"resnet50_captured_256": 0.99},
    ),
    "resnet50_512": Work(
        "ResNet-50 at 224, batch 512, fp16",
        "images",
        _resnet(512, 80, 20),
        least={"resnet50_captured_512": 0.99},
    ),
}
