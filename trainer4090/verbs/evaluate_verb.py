"""`evaluate`: loss and metrics of a trained run on its held-out samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from trainer4090 import checkpoint_file, parse, process, run_folder, session, worker
from trainer4090.disk import write_json
from trainer4090.errors import ConfigError, Problem
from trainer4090.schema import suggestion
from trainer4090.spec import RunSpec, flatten, to_tree


def run(words: Sequence[str]) -> int:
    """Evaluate the run that `run=` names with the file that `checkpoint=` names; written to `evaluation.json` there.

    Raises:
        TrainerError: there is no such run or file.
    """
    words_alone = [word for word in words if "=" not in word]
    if words_alone:
        raise ConfigError(*(Problem(word, "no override", f"type key=value: {word}=...") for word in words_alone))
    options = {"run": "latest", "checkpoint": "best"}
    changes = []
    for word in words:
        key, _, value = word.partition("=")
        if key in options:
            options[key] = value
        else:
            changes.append(word)
    folder = run_folder.find(options["run"])
    spec = changed(parse.load(folder / "spec.yaml", notice=print), changes)
    file = checkpoint_file.named(folder, options["checkpoint"], print)
    record = evaluated(spec, file)
    write_json(folder / "evaluation.json", record)
    values = ", ".join(f"eval {name} {value:.4f}" for name, value in record["eval"].items())
    print(f"{file} (update {record['step']}): {values}")
    return 0


def changed(spec: RunSpec, changes: Sequence[str]) -> RunSpec:
    """The saved spec with single values replaced; options cannot be exchanged in a trained model.

    Raises:
        ConfigError: a key is unknown or a value not allowed.
    """
    tree = to_tree(spec)
    known = flatten(tree)
    problems = []
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


def evaluated(spec: RunSpec, file: Path) -> dict[str, Any]:
    """The evaluation of `file`: its path, update, and values."""
    ready = worker.prepare(spec)
    process.apply_settings(ready.plan.settings, spec.train.deterministic)
    from trainer4090 import loop
    from trainer4090.build import build

    built = build(ready.plan, process.torch_device(ready.device), print, restoring=True)
    progress = session.restored(built, checkpoint_file.load(file), file)
    evaluation = loop.evaluate(built)
    for text in built.data.notices():
        print(text)
    return {"checkpoint": str(file), "step": progress.step, "eval": evaluation}
