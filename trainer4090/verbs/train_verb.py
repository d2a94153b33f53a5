"""`train`: compose, check, and train in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer4090 import checkpoint_file, resume, run_folder, worker
from trainer4090.compose import compose
from trainer4090.errors import ConfigError, Problem
from trainer4090.parse import parse
from trainer4090.disk import write_json, write_text
from trainer4090.report.environment import environment
from trainer4090.signals import StopRequest
from trainer4090.spec import RunSpec, dump


def run(words: Sequence[str]) -> int:
    """Train what `words` say, in a new folder or going on in an old one.

    Raises:
        TrainerError: the run cannot start, or did not end well; `result.json` says the same.
    """
    spec, folder, file, notices = _resolved(words)
    ready = worker.prepare(spec)
    stop = StopRequest()
    if file is None:
        run_folder.claim(folder)
    with run_folder.locked(folder):
        stop.install()
        _save_start(ready, folder, words)
        for text in notices:
            print(text, flush=True)
        result = worker.run(ready, folder, file, stop, live=sys.stdout.isatty())
    print(summary(result, folder), flush=True)
    return 0


def _resolved(words: Sequence[str]) -> tuple[RunSpec, Path, Path | None, list[str]]:
    """Spec, folder, the checkpoint file to go on from, and what the user should know about that choice."""
    spec = parse(compose(words).tree)
    wish = spec.root.resume
    if wish is None:
        return spec, run_folder.fresh(spec.run), None, []
    found = run_folder.to_resume(wish, spec.run)
    if found is None:
        return spec, run_folder.fresh(spec.run), None, ["resume=auto: nothing to go on with, starting afresh"]
    folder = run_folder.folder_of(found)
    spec = parse(compose([*resume.overrides_of(folder), *words]).tree)
    resume.check(folder, spec)
    notices: list[str] = []
    file = found if found.suffix == ".pt" else checkpoint_file.newest_valid(folder, notices.append)
    return spec, folder, file, [*notices, f"resume: going on from {file}"]


def _save_start(ready: worker.Ready, folder: Path, words: Sequence[str]) -> None:
    kept = [word for word in words if not word.startswith("resume=")]
    earlier = resume.overrides_of(folder)
    lines = [*earlier, *(word for word in kept if word not in earlier)]
    texts = {
        "spec.yaml": dump(ready.spec),
        "overrides.txt": "".join(f"{line}\n" for line in lines),
        "plan.txt": f"{ready.plan.describe()}\n",
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / "env.json", environment())
    run_folder.point_latest(folder)


def summary(result: dict[str, Any], folder: Path) -> str:
    """The last line of a run."""
    evaluation = ", ".join(f"eval {name} {value:.4f}" for name, value in result["eval"].items())
    speed = result.get("items_per_s")
    rate = "" if speed is None else f", {speed:,.0f} items/s"
    return f"done: {result['steps']} updates, {evaluation}{rate}; {folder}"


def show(words: Sequence[str]) -> int:
    """Print the composed configuration of `--cfg job`, checked like a run's.

    Raises:
        ConfigError: it is no valid configuration, or something else than the job's is asked for.
    """
    position = list(words).index("--cfg")
    what = words[position + 1] if position + 1 < len(words) else ""
    if what != "job":
        raise ConfigError(Problem("--cfg", repr(what), "allowed is job: --cfg job"))
    print(dump(parse(compose([*words[:position], *words[position + 2 :]]).tree)), end="")
    return 0
