"""`ablate`: compare options, each in processes of its own: how fast, how large, and how equal in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer4090 import ablation, resume, run_folder
from trainer4090.ablation.measure import JSONL
from trainer4090.composition import compose
from trainer4090.errors import CheckpointFileError, ConfigError, Problem
from trainer4090.parse import parse, saved_tree
from trainer4090.spec import RunSpec

_WHEREABOUTS = ("resume", "run.dir", "run.name", "recipe", "data", "model")
"""Keys that decide where an ablation lies. The others may need words of its first start."""


def run(words: Sequence[str]) -> int:
    """Measure the rows that `words` say, in a new folder or going on in an old one.

    Raises:
        TrainerError: a word is wrong, the first row cannot be run, or a signal came.
    """
    resuming = any(word.startswith("resume=") for word in words)
    first = [word for word in words if word.partition("=")[0] in _WHEREABOUTS] if resuming else words
    spec = parse(compose(first).tree)
    found = None if spec.root.resume is None else _found(spec)
    if found is None:
        made = ablation.make(words)
        folder = run_folder.fresh(made.spec.run, "ablate-")
        run_folder.claim(folder)
    else:
        folder = found
        saved_tree(folder / "spec.yaml")  # says which plugin is missing
        made = ablation.make(resume.joined(resume.overrides_of(folder), words))
    with run_folder.locked(folder):
        run_folder.remove_remnants(folder)
        run_folder.point_latest(folder)
        return ablation.run(made, folder)


def _found(spec: RunSpec) -> Path | None:
    """The folder that `resume=` names; None when `auto` finds none.

    Raises:
        CheckpointFileError: there is none.
        ConfigError: another `run.dir` is given beside a path.
    """
    wish, where = spec.root.resume or "", spec.run.dir
    if wish not in ("last", "auto"):
        if where is not None and Path(where).resolve() != Path(wish).resolve():
            remedy = "an ablation goes on in its own folder: leave run.dir out"
            raise ConfigError(Problem("run.dir", f"{where} beside resume={wish}", remedy))
        folders = [Path(wish)]
    else:
        folders = [Path(where)] if where is not None else run_folder.runs_of(spec.run.name or "run")
    for folder in folders:
        if (folder / JSONL).is_file() and (folder / "spec.yaml").is_file():
            return folder
    if wish == "auto":
        return None
    given = f"no rows of an ablation in {folders[0] if folders else run_folder.OUTPUTS}"
    raise CheckpointFileError(Problem("resume", given, "start without resume"))
