"""Command lines and recipes with a mistake: what is typed, the key or file that the error names, and what it allows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A command line with one mistake."""

    id: str
    words: str
    """Separated by blanks."""
    key: str
    allowed: str

    @property
    def typed(self) -> list[str]:
        return self.words.split(" ")


LINES = (
    # Typing errors in names.
    Line("key", "train.step=5", "train.step", "did you mean train.steps?"),
    Line("key-section", "trian.steps=5", "trian.steps", "did you mean train.steps?"),
    Line("key-of-option", "optimizer.larning_rate=1", "optimizer.larning_rate", "did you mean optimizer.lr?"),
    Line("key-alone", "foo=1", "foo", "all keys: trainer4090 --cfg job"),
    Line("key-nested", "foo.bar.baz=1", "foo.bar.baz", "all keys: trainer4090 --cfg job"),
    Line("key-too-deep", "train.seed.x=1", "train.seed.x", "all keys: trainer4090 --cfg job"),
    Line("key-of-another-option", "model.hidden=[8]", "model.hidden", "it belongs to model=mlp"),
    Line("key-of-no-option", "precision.scale=1", "precision.scale", "precision.name"),
    Line("key-of-unchosen", "memory.checkpoint.every=3", "memory.checkpoint.every", "type memory=checkpoint"),
    Line("key-without-option", "memory=checkpoint memory.every=2", "memory.every", "memory.checkpoint.every"),
    Line("option", "precision=fp31", "precision", "did you mean fp32? options: amp, bf16, fp32, tf32"),
    Line("option-far", "model=zzz", "model", "options: char_lstm, cnn"),
    Line("option-case", "precision=AMP", "precision", "options: amp"),
    Line("option-in-list", "memory=[chekpoint]", "memory", "did you mean checkpoint?"),
    Line("option-of-card", "card=rtx5090", "card", "did you mean rtx4090?"),
    Line("option-of-recipe", "recipe=digit", "recipe", "did you mean digits?"),
    Line("option-outside", "recipe=../../secret", "recipe", "options: char_lstm"),
    Line("verb", "trian", "trian", "did you mean train?"),
    Line("verb-twice", "train plan", "plan", "key=value"),
    Line("verb-late", "train.seed=1 plan", "plan", "key=value"),
    Line("task", "task=trian", "task", "train or plan"),
    Line("flag", "--multi", "--multi", "did you mean --multirun?"),
    Line("flag-of-hydra", "--config-name=x", "--config-name", "flags: --cfg"),
    Line("cfg-of-what", "--cfg", "--cfg", "--cfg job"),
    Line("cfg-hydra", "--cfg hydra", "--cfg", "--cfg job"),
    Line("cfg-sweep", "--cfg job -m train.seed=1,2", "--cfg", "leave -m out"),
    Line("sweep-of-list", "list -m", "-m", "it goes with train and plan"),
    Line("list-group", "list presicion", "list", "did you mean precision?"),
    Line("evaluate-nothing", "evaluate run=nothing", "run", "run=latest"),
    Line("evaluate-split", "evaluate split=test", "split", "evaluation or train"),
    Line("evaluate-word", "evaluate run", "run", "key=value"),
    # No override at all.
    Line("no-value-key", "train.steps", "train.steps", "key=value"),
    Line("no-value-group", "precision amp", "precision", "amp, bf16, fp32, tf32"),
    Line("no-key", "=5", "=5", "words joined by dots"),
    Line("empty-part", "train..steps=5", "train..steps", "words joined by dots"),
    Line("dot-at-end", "train.=5", "train.", "words joined by dots"),
    Line("escaped-dot", r"train.a\.b=2", r"train.a\.b", "words joined by dots"),
    Line("added", "+train.seed=3", "train.seed", "type train.seed=3"),
    Line("added-typo", "+train.stepz=3", "train.stepz", "did you mean train.steps or"),
    Line("added-forced", "++foo=1", "foo", "all keys"),
    Line("added-group", "+model=mlp", "model", "type model=mlp"),
    Line("deleted-key", "~train.steps", "train.steps", "give it another value"),
    Line("deleted-group", "~model", "model", "give it another value"),
    Line("deleted-section", "train.seed=1 ~train", "train", "give it another value"),
    Line("group-elsewhere", "model@other=cnn", "model@other", "type model=cnn"),
    Line("option-by-name", "precision.name=amp", "precision.name", "type precision="),
    Line("hydra-key", "hydra.run.dir=elsewhere", "hydra.run.dir", "run.dir=PATH"),
    Line("hydra-group", "hydra/launcher=basic", "hydra/launcher", "run.dir=PATH"),
    # Wrong types, ranges and shapes.
    Line("text-for-number", "optimizer.lr=fast", "optimizer.lr", "a number above 0"),
    Line("text-for-integer", "train.steps=many", "train.steps", "an integer at least 1 or null"),
    Line("fraction-for-integer", "train.batch_size=1.5", "train.batch_size", "an integer at least 1"),
    Line("bool-for-integer", "train.batch_size=true", "train.batch_size", "an integer at least 1"),
    Line("number-for-bool", "train.deterministic=1", "train.deterministic", "true or false"),
    Line("word-for-bool", "debug=yes", "debug", "true or false"),
    Line("number-for-text", "run.name=5", "run.name", "a text or null"),
    Line("list-for-number", "optimizer.lr=[1]", "optimizer.lr", "a number"),
    Line("list-for-text", "run.dir=[a]", "run.dir", "a text or null"),
    Line("number-for-list", "model=mlp model.hidden=8", "model.hidden", "a list, each an integer at least 1"),
    Line("text-in-list", "model=mlp model.hidden=[a]", "model.hidden", "a list, each an integer at least 1"),
    Line("list-in-list", "model=mlp model.hidden=[[8]]", "model.hidden", "a list, each an integer"),
    Line("short-list", "optimizer=adamw optimizer.betas=[0.9]", "optimizer.betas", "a list of 2"),
    Line("mapping-for-list", "optimizer=adamw optimizer.betas={a:1}", "optimizer.betas", "--cfg job"),
    Line("value-for-section", "train=5", "train", "steps, epochs"),
    Line("null-section", "train=null", "train", "steps, epochs"),
    Line("zero", "train.log_every=0", "train.log_every", "at least 1"),
    Line("negative", "train.seed=-1", "train.seed", "at least 0"),
    Line("above", "ema.decay=1.5", "ema.decay", "at least 0 and below 1"),
    Line("open-end", "ema.decay=1", "ema.decay", "below 1"),
    Line("nan", "train.clip_norm=nan", "train.clip_norm", "above 0"),
    Line("infinite", "optimizer.lr=inf", "optimizer.lr", "finite"),
    Line("huge", f"optimizer.lr=1{'0' * 400}", "optimizer.lr", "a number above 0"),
    Line("choice", "schedule=multistep schedule.unit=days", "schedule.unit", "epoch or update"),
    Line("device", "device=gpu", "device", "auto, cpu, cuda or cuda:N"),
    Line("device-index", "device=cuda:x", "device", "auto, cpu, cuda or cuda:N"),
    Line("cards-zero", "cards=0", "cards", "auto or an integer at least 1"),
    Line("missing-value", "train.batch_size=", "train.batch_size", "an integer at least 1"),
    Line("missing-option", "precision=", "precision", "options: amp"),
    Line("null-value", "train.log_every=null", "train.log_every", "an integer at least 1"),
    Line("null-option", "model=null", "model", "options: char_lstm"),
    Line("null-recipe", "recipe=null", "recipe", "did you mean none?"),
    Line("number-option", "model=1", "model", "options: char_lstm"),
    Line("tag-without-eval", "train.best_by=accuracy", "train.best_by", "eval/ and the name of a metric"),
    Line("patience-zero", "train.patience=0", "train.patience", "an integer at least 1 or null"),
    Line("improvement", "train.least_improvement=-1", "train.least_improvement", "at least 0"),
    Line("metric-of-none", "metrics=topk metrics.topk.k=[0]", "metrics.topk.k", "a list, each an integer at least 1"),
    # References.
    Line("reference", "optimizer.lr=${optimizer.base_lr}", "optimizer.lr", "did you mean ${optimizer.lr}?"),
    Line("reference-in-list", "optimizer=adamw optimizer.betas=[${a},0.9]", "optimizer.betas", "all keys"),
    Line("reference-to-itself", "train.seed=${train.seed}", "train.seed", "give one of its keys a value"),
    Line("reference-open", "run.name=${", "run.name", "a reference is closed"),
    Line("reference-escaped", r"run.name='\${a}'", "run.name", "only references to keys"),
    Line("resolver", "run.name=${oc.env:HOME}", "run.name", "only references to keys"),
    Line("resolver-nested", "run.name=${run.${oc.env:HOME}}", "run.name", "only references to keys"),
    Line("resolver-of-hydra", "run.name=${now:%Y}", "run.name", "only references to keys"),
    # Special characters and sweeps.
    Line("sweep-group", "precision=fp32,bf16", "precision", "sweeps need -m"),
    Line("sweep-value", "train.seed=1,2", "train.seed", "sweeps need -m"),
    Line("sweep-range", "train.seed=range(1,3)", "train.seed", "sweeps need -m"),
    Line("comma", "run.name=a,b", "run.name", "quoted: run.name='\"a,b\"'"),
    Line("equals", "resume=a/epoch=3.ckpt", "resume", "quoted: resume='\"a/epoch=3.ckpt\"'"),
    Line("chinese", "run.name=李明", "run.name", "quoted: run.name='\"李明\"'"),
    Line("hash", "run.name=#x", "run.name", "quoted: run.name='\"#x\"'"),
    Line("open-bracket", "memory=[none", "memory", "checkpoint, none"),
    Line("open-list", "optimizer=adamw optimizer.betas=[0.9,0.99", "optimizer.betas", "come in pairs"),
    Line("open-brace", "run.name={a", "run.name", "come in pairs"),
    Line("open-quote", 'run.name="a', "run.name", "close the quote"),
    # Combinations that mean nothing.
    Line("list-for-single", "precision=[amp,bf16]", "precision", "choose one of"),
    Line("list-with-none", "memory=[none,checkpoint]", "memory", "drop none"),
    Line("list-with-eager", "kernels=[eager,fused]", "kernels", "drop eager"),
    Line("list-with-auto", "metrics=[auto,top5]", "metrics", "drop auto"),
    Line("metric-twice", "metrics=[topk,top5]", "metrics", "measure it once"),
    Line("metric-of-labels", "metrics=average_precision", "metrics", "use metrics=top5"),
    Line("metric-of-numbers", "metrics=mean_absolute_error", "metrics", "use loss=mse"),
    Line("metric-above", "metrics=topk metrics.topk.k=[10]", "metrics.topk.k", "at most k=9"),
    Line("best-by-nothing", "train.best_by=eval/top5", "train.best_by", "trainer4090 list metrics"),
    Line("best-by-typo", "train.best_by=eval/acuracy", "train.best_by", "did you mean eval/accuracy?"),
    Line("improvement-alone", "train.least_improvement=0.1", "train.least_improvement", "give train.patience"),
    Line("list-empty", "memory=[]", "memory", "choose one or a list"),
    Line("list-twice", "memory=[checkpoint,checkpoint]", "memory", "name it once"),
    Line("two-lengths", "train.steps=5", "train.epochs", "set the other to null"),
    Line("no-length", "train.epochs=null", "train.steps", "give one of them"),
    Line("no-divisor", "train.micro_batch=5", "train.micro_batch", "the nearest that do: 4 or 8"),
    Line("micro-above", "train.micro_batch=65", "train.micro_batch", "the nearest that do: 64"),
    Line("batch-norm-of-one", "train.batch_size=1", "train.batch_size", "at least 2"),
    Line("images-for-tokens", "model=gpt_tiny", "model", "use data=text"),
    Line("tokens-for-images", "model=mlp data=text", "model", "use data=digits"),
    Line("few-outputs", "model.num_classes=3", "model.num_classes", "at least 10, or auto"),
    Line("heads", "model=gpt_tiny data=text model.num_heads=3", "model.width", "nearest valid: 126 or 129"),
    Line("architecture", "model=torchvision model.arch=resnet51", "model.arch", "or resnet50 or"),
    Line("card-elsewhere", "device=cpu card=rtx4090", "card", "the verb plan"),
    Line("card-auto", "card.memory_mib=5", "card.memory_mib", "card=rtx4090"),
    Line("too-many-cards", "cards=2", "cards", "cards=1"),
    # Other tools' words.
    Line("word-lightning", "precision=16-mixed", "precision", "type precision=amp"),
    Line("word-number", "precision=32", "precision", "type precision=fp32"),
    Line("word-template", "experiment=resnet50", "experiment", "type recipe=resnet50"),
    Line("word-trainer", "trainer.max_epochs=3", "trainer.max_epochs", "type train.epochs=3"),
    Line("word-accumulate", "accumulate=4", "accumulate", "type train.micro_batch="),
    Line("word-schedule", "scheduler=linear", "scheduler", "type schedule=cosine"),
    Line("word-strategy", "strategy=ddp", "strategy", "type parallelism="),
    Line("word-cards", "card=2", "card", "type cards=2"),
    Line("word-rate", "lr=0.1", "lr", "type optimizer.lr=0.1"),
    Line("word-monitor", "monitor=val_loss", "monitor", "type train.best_by=..."),
    Line("word-metric", "metrics=mae", "metrics", "type metrics=mean_absolute_error"),
    Line("word-model", "model=gpt2", "model", "type model=gpt2_124m"),
    # Sweeps.
    Line("sweep-option", "-m precision=fp31,fp32", "precision", "did you mean fp32?"),
    Line("sweep-type", "-m train.seed=1,x", "train.seed", "an integer at least 0"),
    Line("sweep-key", "-m train.stepz=1,2", "train.stepz", "did you mean train.steps or"),
    Line("sweep-folder", "-m run.dir=a,b", "run.dir", "give one"),
    Line("sweep-resume", "-m resume=last train.seed=1,2", "resume", "without -m"),
    Line("sweep-interval", "-m optimizer.lr=interval(0,1)", "optimizer.lr", "list them"),
    Line("sweep-glob", "-m model=glob(*)", "model", "name the options"),
    Line("sweep-of-nothing", "-m train.seed=range(1,1)", "-m", "list some"),
    Line("sweep-refused", "-m train.micro_batch=5,7", "train.micro_batch", "the nearest that do"),
    Line("sweep-unreadable", "-m train.seed=choice() model=cnn", "train.seed", "quoted"),
)

HEADER = "# @package _global_\n"


@dataclass(frozen=True)
class File:
    """A file in `./recipes`, chosen by `recipe=mine`, with one mistake."""

    id: str
    text: str
    key: str
    """What the error names besides the file; it stands alone for a key that the whole configuration does not know."""
    allowed: str
    names_file: bool = True


FILES = (
    File("empty", "", "@package _global_", "make it the first line"),
    File("no-header", "train: {seed: 3}\n", "@package _global_", "make it the first line"),
    File("other-header", "# @package recipe\ntrain: {seed: 3}\n", "@package _global_", "make it the first line"),
    File("late-header", f"train: {{seed: 3}}\n{HEADER}", "@package _global_", "make it the first line"),
    File("dotted-key", f"{HEADER}train.seed: 3\n", "'train.seed'", "nest sections"),
    File("dotted-key-inside", f"{HEADER}model: {{a.b: 3}}\n", "'model.a.b'", "nest sections"),
    File("empty-key", f'{HEADER}"": 3\n', "key ''", "plain words"),
    File("number-key", f"{HEADER}5: 3\n", "'5'", "plain words"),
    File("null-key", f"{HEADER}~: 3\n", "'None'", "plain words"),
    File("bool-key", f"{HEADER}train: {{true: 3}}\n", "'train.True'", "plain words"),
    File("twice", f"{HEADER}train: {{seed: 3}}\ntrain: {{steps: 3}}\n", "duplicate key", "correct the file"),
    File("no-yaml", f"{HEADER}train: [1\n", "no YAML", "correct the file"),
    File("tab", f"{HEADER}train:\n\tseed: 3\n", "no YAML", "correct the file"),
    File("list", f"{HEADER}- train\n", "no mapping", "key: value"),
    File("text", f"{HEADER}train\n", "no mapping", "key: value"),
    File("alias", f"{HEADER}run: &a {{name: x}}\ntrain: *a\n", "alias", "write the value itself"),
    File("endless", f"{HEADER}run: &a [*a]\n", "alias", "write the value itself"),
    File("tag", f"{HEADER}run: {{name: !!str 5}}\n", "YAML tag", "plain values"),
    File("defaults-option", f"{HEADER}defaults: [override /precision: fp31]\n", "'fp31'", "did you mean fp32?"),
    File("defaults-group", f"{HEADER}defaults: [override /precison: amp]\n", "precison", "a GROUP of card"),
    File("defaults-no-slash", f"{HEADER}defaults: [override precision: amp]\n", "precision", "override /GROUP"),
    File("defaults-no-override", f"{HEADER}defaults: [/precision: amp]\n", "precision", "override /GROUP"),
    File("defaults-word", f"{HEADER}defaults: [amp]\n", "'amp'", "override /GROUP"),
    File("defaults-recipe", f"{HEADER}defaults: [override /recipe: digits]\n", "recipe", "override /GROUP"),
    File("defaults-text", f"{HEADER}defaults: amp\n", "no list", "override /precision"),
    File("defaults-list", f"{HEADER}defaults: [override /model: [mlp, cnn]]\n", "model", "options"),
    File("verb", f"{HEADER}task: plan\n", "'task'", "command line"),
    File("key", f"{HEADER}train: {{stepz: 3}}\n", "train.stepz", "did you mean steps?", names_file=False),
    File("section", f"{HEADER}trian: {{seed: 3}}\n", "trian", "did you mean train?", names_file=False),
    File("type", f"{HEADER}train: {{seed: three}}\n", "train.seed", "an integer", names_file=False),
    File("range", f"{HEADER}train: {{seed: -3}}\n", "train.seed", "at least 0", names_file=False),
    File("null", f"{HEADER}train: {{log_every: null}}\n", "train.log_every", "an integer", names_file=False),
    File("shape", f"{HEADER}train: 3\n", "train", "steps, epochs", names_file=False),
    File("date", f"{HEADER}train: {{seed: 2030-01-01}}\n", "train.seed", "an integer", names_file=False),
    File("reference", f"{HEADER}optimizer: {{lr: '${{optimizer.base_lr}}'}}\n", "optimizer.lr", "did you mean", False),
    File("contradiction", f"{HEADER}defaults: [override /memory: [none, checkpoint]]\n", "memory", "drop none", False),
)
