"""One run in this process: saved spec -> plan -> build -> train -> result.json. Knows nothing of Hydra.

`python -m trainer4090.worker FOLDER` is what a sweep starts for each of its jobs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer4090 import checkpoint_file, device, parse, plan, rules, run_folder
from trainer4090.errors import (
    CheckpointFileError,
    InterruptedRunError,
    MemoryExhaustedError,
    Problem,
    exit_code_of,
    lines_of,
)
from trainer4090.plan import Plan
from trainer4090.records import Settings
from trainer4090.disk import write_json
from trainer4090.report.environment import environment
from trainer4090.signals import StopRequest
from trainer4090.spec import RunSpec, dump, to_tree

if TYPE_CHECKING:
    import torch

    from trainer4090.build import Run
    from trainer4090.log_point import LogPoints
    from trainer4090.loop import Progress
    from trainer4090.report import Reporter

GIB = 2**30
_STATUS = {6: "oom", 130: "interrupted", 143: "interrupted"}


@dataclass(frozen=True)
class Ready:
    """A spec whose plan was made for a device of this machine and passed every rule."""

    spec: RunSpec
    plan: Plan
    device: device.Choice


def prepare(spec: RunSpec) -> Ready:
    """Choose the device, make the plan, and check it. Imports no torch and writes nothing.

    Raises:
        TrainerError: the spec cannot be run here.
    """
    chosen = device.choose(spec.root.device, spec.card)
    made = plan.make(spec, chosen.card, plan.gather(spec))
    rules.check(made)
    return Ready(spec, made, chosen)


def run(ready: Ready, folder: Path, resume_from: Path | None, stop: StopRequest, live: bool) -> dict[str, Any]:
    """Train in `folder` (claimed and locked by the caller) and return what `result.json` holds.

    Whatever ends the run, `result.json` and `train.log` say so before the error goes on to the caller.
    """
    session = _Session(folder, live)
    try:
        session.train(ready, resume_from, stop)
    except BaseException as error:
        failure = _translated(error, ready.plan)
        session.close({})
        _append(folder / "train.log", "".join(traceback.format_exception(error)))
        write_json(folder / "result.json", session.result(exit_code_of(failure), lines_of(failure)))
        raise failure from error
    session.close(session.final_values())
    result = session.result(0, [])
    write_json(folder / "result.json", result)
    return result


class _Session:
    """What a run has come to, so that an end at any point can be reported."""

    def __init__(self, folder: Path, live: bool) -> None:
        self._folder = folder
        self._live = live
        self._reporter: Reporter | None = None
        self._points: LogPoints | None = None
        self._progress: Progress | None = None
        self._device: torch.device | None = None
        self._closers: list[Callable[[], None]] = []

    def train(self, ready: Ready, resume_from: Path | None, stop: StopRequest) -> None:
        """Build the run, bring it to where it stood, and train it to its end.

        Raises:
            InterruptedRunError: a signal ended it; the state is saved.
        """
        apply_settings(ready.plan.settings, ready.spec.train.deterministic)
        from trainer4090 import loop
        from trainer4090.build import build

        self._device = torch_device(ready.device)
        state = None if resume_from is None else checkpoint_file.load(resume_from)
        notices: list[str] = []
        built = build(ready.plan, self._device, notices.append)
        self._progress = loop.Progress() if state is None else restored(built, state, resume_from)
        self._open_report(ready, built)
        assert self._reporter is not None and self._points is not None
        for text in notices:
            self._reporter.notice(text)
        if self._progress.step >= ready.plan.horizon.total:
            self._reporter.notice(f"nothing to do: already at update {self._progress.step}")
            return
        loop.train(built, self._folder, self._reporter, self._points, self._progress, stop)
        if stop.signal_number is not None and self._progress.step < ready.plan.horizon.total:
            raise InterruptedRunError(stop.signal_number)

    def _open_report(self, ready: Ready, built: Run) -> None:
        from trainer4090.log_point import LogPoints
        from trainer4090.report import open_report

        assert self._progress is not None
        card, data = ready.plan.card, ready.plan.evidence.data
        described = ready.plan.describe()
        reporter = open_report(
            folder=self._folder,
            start_step=self._progress.step,
            total_steps=ready.plan.horizon.total,
            hyperparameters=to_tree(ready.spec),
            texts={"spec": dump(ready.spec), "plan": described},
            live=self._live,
        )
        self._reporter = reporter
        for line in [*described.splitlines(), f"device: {built.device} ({ready.device.reason})", f"run: {self._folder}"]:
            reporter.notice(line)
        flops = None if built.flops_per_sample is None else built.flops_per_sample / data.items_per_sample
        peak = card.peak_tflops(ready.plan.precision.arithmetic)
        self._points = LogPoints(reporter, built.device, flops, peak, self._gpu_sampler(ready, reporter))

    def _gpu_sampler(self, ready: Ready, reporter: Reporter) -> Callable[[], dict[str, float]]:
        if ready.device.uuid is None:
            return dict
        from trainer4090.report.nvml import open_sampler

        sampler = open_sampler(ready.device.uuid, reporter.notice)
        self._closers.append(sampler.close)
        return sampler.values

    def final_values(self) -> dict[str, float]:
        """Metrics of the finished run, by tag."""
        evaluation = {} if self._progress is None else self._progress.evaluation
        return {f"eval/{name}": value for name, value in evaluation.items()}

    def close(self, final: dict[str, float]) -> None:
        """Flush and close every sink; what is still on its way is written first. `final` is empty after a failure."""
        if self._points is not None and self._reporter is not None:
            self._points.flush()
        for closer in self._closers:
            closer()
        if self._reporter is not None:
            self._reporter.close(final)

    def result(self, exit_code: int, problems: list[str]) -> dict[str, Any]:
        """Content of `result.json`."""
        result: dict[str, Any] = {
            "status": _STATUS.get(exit_code, "ok" if exit_code == 0 else "failed"),
            "exit_code": exit_code,
            "steps": 0 if self._progress is None else self._progress.step,
            "eval": {} if self._progress is None else self._progress.evaluation,
        }
        if self._points is not None:
            summary = self._points.summary()
            result |= {"items_per_s": summary.items_per_s, "step_time_ms": summary.step_time_ms}
        peak = _peak_memory_gib(self._device)
        if peak is not None:
            result["peak_memory_gib"] = peak
        if problems:
            result["problems"] = problems
        return {key: value for key, value in result.items() if value is not None}


def restored(built: Run, state: dict[str, Any], path: Path | None) -> Progress:
    """Put a loaded state into a built run.

    Raises:
        CheckpointFileError: the file is of another model or of another version of trainer4090.
    """
    from trainer4090 import loop

    try:
        if state["format"] != loop.STATE_FORMAT:
            raise ValueError(f"format {state['format']}, this version reads {loop.STATE_FORMAT}")
        return loop.restore(built, state)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        text = " ".join(str(error).split())
        problem = Problem(str(path), f"does not fit this run ({text})", "resume with the options it was trained with")
        raise CheckpointFileError(problem) from error


def apply_settings(settings: Settings, deterministic: bool) -> None:
    """Set environment and backend flags for the whole process, before torch starts work."""
    os.environ.update(settings.environment)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with fixed workspaces
    import torch

    for path, value in settings.flags:
        *parents, name = path.split(".")
        owner: Any = torch
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)
    torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        torch.backends.cudnn.benchmark = False  # picks the fastest algorithm anew in every process


def torch_device(chosen: device.Choice) -> torch.device:
    """The torch device with the chosen GPU's UUID; torch numbers GPUs in another order than the driver."""
    import torch

    if chosen.uuid is None:
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(index).uuid) in chosen.uuid:
            torch.cuda.set_device(index)
            return torch.device("cuda", index)
    from trainer4090.errors import MachineError

    given = f"torch {torch.__version__} does not see {chosen.card.device_name} ({chosen.uuid})"
    raise MachineError(Problem("device", given, "install a CUDA build of torch for this driver, or use device=cpu"))


def _translated(error: BaseException, made: Plan) -> BaseException:
    import torch

    out_of_memory = isinstance(error, torch.OutOfMemoryError)
    on_host = isinstance(error, (MemoryError, RuntimeError)) and "not enough memory" in str(error)
    if out_of_memory or on_host or isinstance(error, MemoryError):
        given = f"out of memory with train.micro_batch={made.batching.micro_batch}"
        return MemoryExhaustedError(Problem("memory", given, f"the cheapest cure: {_cure(made)}"))
    if isinstance(error, KeyboardInterrupt):
        return InterruptedRunError(signal.SIGINT)
    return error


def _cure(made: Plan) -> str:
    """What costs least speed: half the bytes first, then smaller micro-batches, then recomputation."""
    if made.card.device == "cuda" and made.precision.arithmetic in ("float32", "tf32"):
        return "precision=bf16"
    smaller = [size for size in range(1, made.batching.micro_batch) if made.batching.batch_size % size == 0]
    if smaller:
        return f"train.micro_batch={smaller[-1]}"
    return "memory=checkpoint" if not made.memory.needs_blocks else "a smaller model"


def _peak_memory_gib(used: torch.device | None) -> dict[str, float] | None:
    if used is None or used.type != "cuda":
        return None  # not known on a CPU
    import torch

    return {
        "allocated": torch.cuda.max_memory_allocated(used) / GIB,
        "reserved": torch.cuda.max_memory_reserved(used) / GIB,
    }


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent process ends, so that no job outlives its sweep unseen."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def main(folder: Path, parent: int) -> int:
    """Run the saved spec of `folder`; the exit code."""
    stop = StopRequest()
    stop.install()
    die_with_parent(parent)
    try:
        with run_folder.locked(folder):
            ready = prepare(parse.load(folder / "spec.yaml"))
            write_json(folder / "env.json", environment())
            run(ready, folder, resume_from=None, stop=stop, live=False)
    except Exception as error:
        print("\n".join(lines_of(error)), file=sys.stderr)
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
