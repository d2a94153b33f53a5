"""What is measured: works, and who does them. `ours` are words of the command line, all others loops of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

QUIET = ("train.epochs=null", "train.eval_every=1000000", "train.checkpoint_every=1000000")
"""No evaluation and no checkpoint file but the last one; both are outside of what is timed anyway."""
BEST = ("kernels=[fused,graph]",)
PLAIN = ("kernels=fused", "kernels.fused.compile=false")
"""channels_last and the optimizer's fused kernels, launched one by one."""


RESNET_HALF = ("memory=checkpoint", "memory.checkpoint.every=1")
"""What holds half of a ResNet's activations at the least cost: compiled, each block alone costs less than two."""


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
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Contenders that are our own command line with other words."""
    most_memory: Mapping[str, float] = field(default_factory=dict)
    """Contender -> what our peak of allocated memory may be of its peak at most."""
    text_repeats: int = 0
    """For a language model: copies of the default text in the file that it reads, so that no epoch ends."""


def _resnet(batch_size: int, steps: int, log_every: int, *words: str) -> tuple[str, ...]:
    sizes = (f"train.batch_size={batch_size}", f"data.num_evaluation={batch_size}", f"data.pool_size={batch_size}")
    return ("recipe=resnet50", *QUIET, *sizes, f"train.steps={steps}", f"train.log_every={log_every}", *words)


def _gpt2(batch_size: int, steps: int, *words: str) -> tuple[str, ...]:
    sizes = ("model.vocab_size=50304", f"train.batch_size={batch_size}", f"train.steps={steps}")
    return ("recipe=gpt2_124m", *QUIET, *sizes, "train.clip_norm=null", "train.log_every=20", *words)


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
        _gpt2(16, 120, *BEST),
        least={"gpt2_captured_16": 0.99},
        text_repeats=10,
    ),
    "gpt2_64": Work(
        "GPT-2 124M, 64 sequences of 1024, bf16",
        "tokens",
        _gpt2(64, 60, *BEST),
        least={"gpt2_captured_64": 0.99},
        text_repeats=12,
    ),
    "resnet50_32": Work(
        "ResNet-50 at 224, batch 32, fp16",
        "images",
        _resnet(32, 400, 100, *BEST),
        least={"resnet50_eager_32": 2.8},
        goal={"resnet50_eager_32": 3.2, "resnet50_captured_32": 1.0},
    ),
    "resnet50_256": Work(
        "ResNet-50 at 224, batch 256, fp16",
        "images",
        _resnet(256, 120, 40, *BEST),
        least={"resnet50_captured_256": 0.99},
    ),
    "resnet50_512": Work(
        "ResNet-50 at 224, batch 512, fp16",
        "images",
        _resnet(512, 80, 20, *BEST),
        least={"resnet50_captured_512": 0.99},
    ),
    "resnet50_amp_alone": Work(
        "ResNet-50 at 224, batch 64: amp alone",
        "images",
        _resnet(64, 120, 40, *PLAIN),
        least={"fp32": 1.7},
        goal={"fp32": 3.0},
        rows={"fp32": _resnet(64, 80, 20, *PLAIN, "precision=fp32")},
    ),
    "resnet50_fused_alone": Work(
        "ResNet-50 at 224, batch 64, fp16: compilation alone",
        "images",
        _resnet(64, 160, 40, "kernels=fused"),
        least={"eager": 1.4},
        goal={"eager": 1.7},
        rows={"eager": _resnet(64, 120, 40, *PLAIN)},
    ),
    "resnet50_512_and_fp32_32": Work(
        "ResNet-50 at 224: batch 512 at its best over eager fp32 at 32",
        "images",
        _resnet(512, 80, 20, *BEST),
        least={"fp32_32": 9.0},
        rows={"fp32_32": _resnet(32, 120, 40, "kernels=eager", "precision=fp32")},
    ),
    "gpt2_64_and_fp32": Work(
        "GPT-2 124M: 64 sequences at its best over eager fp32 at 16",
        "tokens",
        _gpt2(64, 60, *BEST),
        least={"fp32_16": 10.0},
        rows={"fp32_16": _gpt2(16, 60, "kernels=eager", "precision=fp32")},
        text_repeats=12,
    ),
    "resnet50_half_memory": Work(
        "ResNet-50 at 224, batch 256, fp16: half the memory of eager",
        "images",
        _resnet(256, 120, 40, *BEST, *RESNET_HALF),
        least={"eager": 0.95},
        goal={"eager": 1.0},
        rows={
            "eager": _resnet(256, 120, 40, *PLAIN),
            "checkpoint_every_2": _resnet(256, 120, 40, *PLAIN, "memory=checkpoint"),
        },
        most_memory={"eager": 0.5},
    ),
    "gpt2_half_memory": Work(
        "GPT-2 124M, 16 sequences, bf16: half the memory of eager",
        "tokens",
        _gpt2(16, 120, "kernels=[fused,graph,linear_cross_entropy]"),
        least={"eager": 1.3},
        goal={"eager": 1.4},
        rows={"eager": _gpt2(16, 80, "kernels=eager")},
        text_repeats=10,
        most_memory={"eager": 0.5},
    ),
    "resnet50_1024": Work(
        "ResNet-50 at 224: micro-batch 1,024 under a 4090's memory, over eager fp32 at 32",
        "images",
        _resnet(1024, 60, 20, "kernels=fused", *RESNET_HALF, "memory_cap_gib=23.3"),
        least={"fp32_32": 5.0},
        rows={"fp32_32": _resnet(32, 120, 40, "kernels=eager", "precision=fp32")},
    ),
}
