"""`evaluate`: loss and metrics of a trained run on its held-out samples, or on those that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from trainer4090 import checkpoint_file, parse, process, run_folder, session, worker
from trainer4090.data import SPLITS, Split
from trainer4090.disk import write_json
from trainer4090.errors import ConfigError, Problem
from trainer4090.failure import exhaustion
from trainer4090.metrics import METRICS
from trainer4090.parallelism.single import Config
from trainer4090.schema import suggestion
from trainer4090.spec import Choice, RunSpec, flatten, to_tree

_SINGLE = Choice("single", Config())


def run(words: Sequence[str]) -> int:
    """Evaluate the run that `run=` names with the file that `checkpoint=` names; written to `evaluation.json` there.

    Raises:
        TrainerError: there is no such run or file.
    """
    words_alone = [word for word in words if "=" not in word]
    if words_alone:
        raise ConfigError(*(Problem(word, "no override", f"type key=value: {word}=...") for word in words_alone))
    options = {"run": "latest", "checkpoint": "best", "split": "evaluation"}
    changes = []
    for word in words:
        key, _, value = word.partition("=")
        if key in options:
            options[key] = value
        else:
            changes.append(word)
    split = _split(options["split"])
    folder = run_folder.find(options["run"])
    spec = in_one_process(changed(parse.load(folder / "spec.yaml", notice=print), changes))
    file = checkpoint_file.named(folder, options["checkpoint"], print)
    record = evaluated(spec, file, split)
    write_json(folder / "evaluation.json", record)
    values = ", ".join(f"eval {name} {value:.4f}" for name, value in record["eval"].items())
    print(f"{file} (update {record['step']}, {split} split): {values}")
    return 0


def in_one_process(spec: RunSpec) -> RunSpec:
    """The spec on one card: what was trained is the same on any number of them."""
    return replace(spec, root=replace(spec.root, cards="auto"), parallelism=_SINGLE)


def _split(word: str) -> Split:
    """The samples that `split=` names, by the name that `Data` gives them.

    Raises:
        ConfigError: there are none of this name.
    """
    for split in SPLITS:
        if word == split:
            return split
    raise ConfigError(Problem("split", f"no samples {word!r}", f"allowed is {' or '.join(SPLITS)}"))


def changed(spec: RunSpec, changes: Sequence[str]) -> RunSpec:
    """The saved spec with single values replaced; of the options only metrics, which are no part of a trained model.

    Raises:
        ConfigError: a key is unknown or a value not allowed.
    """
    tree = to_tree(spec)
    problems = []
    chosen = [change for change in changes if change.startswith("metrics=")]
    changes = [change for change in changes if change not in chosen]
    for change in chosen[-1:]:
        tree["metrics"] = _metrics(change.partition("=")[2], problems)
        tree["train"]["best_by"] = "eval/loss"  # what it was may not be measured now, and nothing is chosen here
    known = flatten(tree)
    values = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in known:
            problems.append(Problem(key, "unknown key", suggestion(key, known, "keys of this run", "its spec.yaml")))
        else:
            values[key] = _value(key, value, problems)
    if problems:
        raise ConfigError(*problems)
    merged = OmegaConf.create(tree)
    for key, value in values.items():
        OmegaConf.update(merged, key, value, merge=False)
    changed_tree: Any = OmegaConf.to_container(merged, resolve=False)
    return parse.parse(changed_tree)


def _value(key: str, text: str, problems: list[Problem]) -> Any:
    try:
        return yaml.load(text, Loader=get_yaml_loader())
    except yaml.YAMLError:
        problems.append(Problem(key, f"cannot read {text!r}", "give a number, a word or a [list]"))
        return None


def _metrics(text: str, problems: list[Problem]) -> dict[str, Any]:
    """The section `metrics` of the options that are named, with their defaults: there is no Hydra here."""
    value, known = _value("metrics", text, problems), METRICS.names()
    names = value if isinstance(value, list) else [value]
    unknown = [str(name) for name in names if name not in known]
    problems += [Problem("metrics", f"unknown option {name!r}", suggestion(name, known, "options")) for name in unknown]
    return {} if unknown else {name: _defaults(METRICS.get(name).config) for name in names}


def _defaults(config: type) -> dict[str, Any]:
    """The fields of a Config that have a default; the others are found missing when the spec is read."""
    return {each.name: each.default for each in fields(config) if each.default is not MISSING}


def evaluated(spec: RunSpec, file: Path, split: Split) -> dict[str, Any]:
    """The evaluation of `file`: its path, update, split, and values."""
    ready = worker.prepare(spec)
    process.apply_settings(ready.plan.allocator.settings + ready.plan.settings, spec.train.deterministic)
    from trainer4090 import loop
    from trainer4090.build import build

    for notice in ready.plan.memory_cap.notices:
        print(notice)
    place = process.torch_device(ready.device, ready.plan.memory_cap.gib)
    size = ready.plan.evaluation_batch
    remedy = "use device=cpu" if size == 1 else f"use train.micro_batch={size // 2}, which is {size} now"
    with exhaustion(ready.plan.memory_cap.gib, remedy):
        built = build(ready.plan, place, print, restoring=True)
        progress = session.restored(built, checkpoint_file.load(file), file)
        evaluation = loop.evaluate(built, split)
    for text in built.data.notices():
        print(text)
    return {"checkpoint": str(file), "step": progress.step, "split": split, "eval": evaluation}
