"""Words of other tools, translated: people arrive with the spelling that they know.

Only words that are wrong are looked up here, so a translation can never stand in the way of a user's own option.
"""

from __future__ import annotations

from trainer4090.errors import Problem

KEYS = {
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
    "metric": "metrics",
    "monitor": "train.best_by",
    "metric_for_best_model": "train.best_by",
    "patience": "train.patience",
    "early_stopping": "train.patience",
    "early_stopping_patience": "train.patience",
    "min_delta": "train.least_improvement",
    "compile": "kernels",
    "torch_compile": "kernels",
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "name": "run.name",
    "output_dir": "run.dir",
    "max_grad_norm": "train.clip_norm",
    "clip_grad": "train.clip_norm",
}
OPTIONS = {
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
    ("loss", "bce_with_logits"): "bce",
    ("loss", "binary_cross_entropy"): "bce",
    ("metrics", "accuracy"): "top1",
    ("metrics", "mae"): "mean_absolute_error",
    ("metrics", "mAP"): "average_precision",
    ("metrics", "ppl"): "perplexity",
    ("data", "mnist"): "digits",
    ("model", "gpt2"): "gpt2_124m",
    ("model", "lstm"): "char_lstm",
}
NOTES = {
    "train.micro_batch": "samples a forward; train.batch_size / train.micro_batch is the accumulation",
    "memory": "memory=checkpoint recomputes activations",
    "kernels": "kernels=fused compiles",
    "device": "device=cuda or device=cpu",
    "train.best_by": "an eval tag: eval/loss, or eval/accuracy",
    "train.patience": "evaluations without a better train.best_by",
}
"""Our keys whose values mean something else than the other tool's."""


def translated_key(key: str, value: str, options: list[str]) -> Problem | None:
    """The problem with our own word for another tool's `key`, or None. `options`: of our key, if it is a group."""
    ours = KEYS.get(key)
    if ours is None:
        return None
    if ours in NOTES:
        remedy = f"type {ours}=... ({NOTES[ours]})"
    elif options and OPTIONS.get((ours, value), value) not in options:
        remedy = f"type {ours}=... (one of {', '.join(options)})"
    else:
        remedy = f"type {ours}={OPTIONS.get((ours, value), value)}"
    return Problem(key, "is another tool's word", remedy)


def translated_option(group: str, word: str) -> Problem | None:
    """The problem with our own word for another tool's option of one of our groups, or None."""
    if group == "card" and word.isdigit():
        return Problem("card", f"{word!r} is a number", f"type cards={word}; card=NAME describes the hardware")
    ours = OPTIONS.get((group, word))
    return None if ours is None else Problem(group, f"{word!r} is another tool's word", f"type {group}={ours}")
