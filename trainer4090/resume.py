"""What a resumed run may change. Everything else would train something else under the same curve."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer4090 import parse, paths, plan, run_folder
from trainer4090.errors import ConfigError, DataError, Problem
from trainer4090.schedules import SCHEDULES
from trainer4090.schema import shown
from trainer4090.spec import SINGLE_GROUPS, RunSpec, flatten, to_tree
from trainer4090.traits import DataTraits

KEPT_SECTIONS = ("model", "data", "loss", "schedule")
KEPT_KEYS = ("train.seed", "train.batch_size", "train.best_by", "optimizer.name", "optimizer.layer_decay")
FREE_KEYS = ("data.num_workers", "data.prefetch_stream")
_BREAKS = {"\n", "\r"}


def check(folder: Path, spec: RunSpec) -> None:
    """Raise unless `spec` goes on with the training that `folder` holds.

    Raises:
        ConfigError: naming every key that would change it.
    """
    before = parse.load(folder / "spec.yaml")
    problems = [*_changed(before, spec), *_stretched(before, spec)]
    if problems:
        raise ConfigError(*problems)


def require_plugins(words: Sequence[str]) -> None:
    """Raise when `words` choose an option that nobody knows, and the newest run that has it needs a plugin.

    The words of a resuming start say where the run lies, and its plugin may be forgotten among them.

    Raises:
        ConfigError: with the plugin to type.
    """
    chosen = [word.partition("=")[::2] for word in words if word.partition("=")[0] in SINGLE_GROUPS]
    unknown = [(group, name) for group, name in chosen if name not in paths.options(group)]
    specs = sorted(run_folder.OUTPUTS.glob("*/*/spec.yaml"), key=lambda spec: spec.parent.name, reverse=True)
    for spec in specs if unknown else ():
        text = spec.read_text(encoding="utf-8")
        if any(f"\n{group}:\n  name: {name}\n" in text for group, name in unknown):
            parse.saved_tree(spec)


def check_classes(saved: Mapping[str, Any], data: DataTraits) -> None:
    """Raise unless output 0, 1, ... of the model means the same class now. `saved`: `data` of a checkpoint file.

    Raises:
        DataError: naming the classes that differ.
    """
    before, now = list(saved.get("class_names", ())), list(data.class_names)
    if before == now or not before or not now:
        return
    gone, new = ([repr(name) for name in one if name not in other] for one, other in ((before, now), (now, before)))
    parts = [f"{word} {', '.join(names)}" for word, names in (("no more", gone), ("new", new)) if names]
    given = f"other classes than the model was trained with: {', '.join(parts) or 'the same in another order'}"
    raise DataError(Problem("data", given, "bring back the folders of these classes, or start a new run"))


def check_samples(saved: Mapping[str, Any], data: DataTraits) -> None:
    """Raise unless the training samples are those of the checkpoint file: others would come in another order.

    Raises:
        DataError: they are not, or their classes are others.
    """
    check_classes(saved, data)
    if saved.get("fingerprint") and saved["fingerprint"] != data.fingerprint:
        given = f"{data.num_train:,} training samples that are not the {saved['num_train']:,} the run began with"
        raise DataError(Problem("data", given, "bring the files back as they were, or start a new run"))


def overrides_of(folder: Path) -> list[str]:
    """The overrides that the run was started with; its own words come before those of the resuming command line."""
    path = folder / "overrides.txt"
    if not path.is_file():
        return []
    lines = path.read_bytes().decode().split("\n")[:-1]
    return [json.loads(line) if line.startswith('"') else line for line in lines]


def overrides_text(words: Sequence[str]) -> str:
    """Content of `overrides.txt`: a line each, as it was typed; one that holds a line break as a JSON string."""
    return "".join(f"{json.dumps(word) if _BREAKS & {*word} else word}\n" for word in words)


def joined(earlier: Sequence[str], words: Sequence[str]) -> list[str]:
    """Overrides of the run as a whole: each key once, with its newest value; `resume` concerns one start only."""
    newest = {word.partition("=")[0]: word for word in (*earlier, *words)}
    return [word for key, word in newest.items() if key != "resume"]


def _changed(before: RunSpec, now: RunSpec) -> Iterator[Problem]:
    old, new = flatten(to_tree(before)), flatten(to_tree(now))
    for key in sorted({*old, *new}):
        kept = key in KEPT_KEYS or (key.split(".")[0] in KEPT_SECTIONS and key not in FREE_KEYS)
        if kept and old.get(key) != new.get(key):
            given = f"was {shown(old.get(key))}, now {shown(new.get(key))}"
            yield Problem(key, given, "a resumed run keeps it; drop the override, or start a new run without resume")


def _stretched(before: RunSpec, now: RunSpec) -> Iterator[Problem]:
    schedule = SCHEDULES.get(now.schedule.name).build(now.schedule.config)
    old, new = (plan.horizon_of(spec, plan.gather(spec).data).total for spec in (before, now))
    if schedule.needs_total and old != new:
        key = "train.steps" if now.train.steps is not None else "train.epochs"
        given = f"the {now.schedule.name} schedule would change from {old} to {new} updates"
        yield Problem(key, given, "keep the length, or use schedule=constant or multistep from the start")
