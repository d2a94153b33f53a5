"""Words of other tools, translated: people arrive with the spelling that they know."""

from __future__ import annotations

from collections.abc import Iterator

from trainer4090.errors import Problem

_KEYS = {
    "experiment": "recipe",
    "config": "recipe",
    "trainer.precision": "precision",
    "trainer.devices": "cards",
    "trainer.max_steps": "train.steps",
    "trainer.max_epochs": "train.epochs",
    "trainer.accumulate_grad_batches": "train.micro_batch",
    "trainer.gradient_clip_val": "train.clip_norm",
    "accumulate": "train.micro_batch",
    "train.accumulate": "train.micro_batch",
    "accumulate_grad_batches": "train.micro_batch",
    "gradient_accumulation_steps": "train.micro_batch",
    "gradient_checkpointing": "memory",
    "activation_checkpointing": "memory",
    "batch_size": "train.batch_size",
    "data.batch_size": "train.batch_size",
    "max_steps": "train.steps",
    "train.max_steps": "train.steps",
    "max_epochs": "train.epochs",
    "epochs": "train.epochs",
    "steps": "train.steps",
    "seed": "train.seed",
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "gpus": "cards",
    "devices": "cards",
    "world_size": "cards",
    "accelerator": "device",
    "strategy": "parallelism",
    "dataset": "data",
    "datamodule": "data",
    "criterion": "loss",
    "optim": "optimizer",
    "compile": "kernels",
    "torch_compile": "kernels",
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "name": "run.name",
    "output_dir": "run.dir",
    "max_grad_norm": "train.clip_norm",
    "clip_grad": "train.clip_norm",
}
_VALUES = {
    ("precision", "16-mixed"): "amp",
    ("precision", "16"): "amp",
    ("precision", "fp16"): "amp",
    ("precision", "half"): "amp",
    ("precision", "float16"): "amp",
    ("precision", "mixed"): "amp",
    ("precision", "bf16-mixed"): "bf16",
    ("precision", "bfloat16"): "bf16",
    ("precision", "32"): "fp32",
    ("precision", "32-true"): "fp32",
    ("precision", "float32"): "fp32",
    ("memory", "gradient_checkpointing"): "checkpoint",
    ("memory", "activation_checkpointing"): "checkpoint",
    ("kernels", "compile"): "fused",
    ("kernels", "inductor"): "fused",
    ("optimizer", "adam"): "adamw",
    ("schedule", "step"): "multistep",
    ("schedule", "one_cycle"): "onecycle",
    ("schedule", "linear"): "cosine",
    ("loss", "ce"): "cross_entropy",
    ("data", "mnist"): "digits",
    ("model", "gpt2"): "gpt2_124m",
    ("model", "lstm"): "char_lstm",
}
_NOTES = {
    "train.micro_batch": "samples a forward; train.batch_size / train.micro_batch is the accumulation",
    "memory": "memory=checkpoint recomputes activations",
    "kernels": "kernels=fused compiles",
}


def translate(override: str) -> Iterator[Problem]:
    """A problem with our own word for an override whose key or value is another tool's."""
    key, separator, value = override.partition("=")
    key, value = key.lstrip("+~"), value.strip("'\"")
    if not separator:
        return
    if key == "card" and value.isdigit():
        yield Problem("card", f"{value!r} is a number", f"type cards={value}; card=NAME describes the hardware")
    elif key in _KEYS:
        ours = _KEYS[key]
        note = f" ({_NOTES[ours]})" if ours in _NOTES else ""
        yield Problem(key, "is another tool's word", f"type {ours}=...{note}")
    for word in value.strip("[]").split(","):
        ours = _VALUES.get((key, word.strip()))
        if ours is not None:
            yield Problem(key, f"{word.strip()!r} is another tool's word", f"type {key}={ours}")
