"""One run in this process, from its plan to its result, reported whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from trainer4090 import checkpoint_file, device, ending, resume, signals
from trainer4090.errors import CheckpointFileError, Problem
from trainer4090.plan import Plan
from trainer4090.process import GIB, apply_settings, torch_device
from trainer4090.ranks import ALONE, Ranks
from trainer4090.signals import StopRequest

if TYPE_CHECKING:
    import torch

    from trainer4090.build import Run
    from trainer4090.log_point import LogPoints
    from trainer4090.loop import Progress
    from trainer4090.report import Reporter

STATUS = {0: "ok", 6: "oom", 130: "interrupted", 143: "interrupted"}
"""Exit code -> `status` of `result.json`; all others have failed."""
Meet = Callable[["torch.device"], Ranks]
"""Device of this rank -> the ranks of the run."""


def _nobody(device: torch.device) -> Ranks:
    return ALONE


@final
class Session:
    """What a run has come to, so that an end at any point can be reported."""

    def __init__(
        self, plan: Plan, chosen: device.Choice, folder: Path, live: bool, leads: bool = True, meet: Meet = _nobody
    ) -> None:
        """`folder` is claimed and locked by the caller; `live`: a progress bar where there is a terminal.

        `leads`: this rank writes. `meet` opens the way to the other ranks.
        """
        self.folder = folder
        self.leads = leads
        self._meet = meet
        self._ranks: Ranks = ALONE
        self._plan = plan
        self._chosen = chosen
        self._live = live
        self._device: torch.device | None = None
        self._progress: Progress | None = None
        self._reporter: Reporter | None = None
        self._points: LogPoints | None = None
        self._measured: Callable[[], dict[str, Any]] = dict
        self._peak_gib: dict[str, float] = {}
        self._closers: list[Callable[[], None]] = []

    @property
    def training(self) -> bool:
        """Whether everything was built and updates are made."""
        return self._points is not None

    def train(self, resume_from: Path | None, stop: StopRequest) -> None:
        """Build the run, bring it to where it stood, and train it to its end.

        Raises:
            InterruptedRunError: a signal ended it; the state is saved.
        """
        settings = self._plan.allocator.settings + self._plan.settings
        apply_settings(settings, self._plan.spec.train.deterministic)
        from trainer4090 import loop, measuring
        from trainer4090.build import build

        self._device = torch_device(self._chosen, self._plan.memory_cap.gib)
        self._ranks = ranks = self._meet(self._device)
        state = None if resume_from is None else checkpoint_file.load(resume_from)
        if state is not None:
            resume.check_samples(state.get("data", {}), self._plan.evidence.data)
        notices: list[str] = []
        built = build(self._plan, self._device, notices.append, restoring=state is not None, ranks=ranks)
        self._progress = progress = loop.Progress() if state is None else restored(built, state, resume_from)
        reporter, points = self._open_report(built, progress.step)
        if self.leads:
            checkpoint_file.cut_back(self.folder, progress.step, progress.best, notices.append)
        for text in notices:
            reporter.notice(text)
        start = progress.step
        reason = ending.nothing_left(self._plan, progress)
        if reason is not None:
            reporter.notice(f"nothing to do: {reason}")
            return
        if self._plan.spec.root.task == "ablate":
            self._measured = measuring.measure(built, points, progress, stop)
            return
        loop.train(built, self.folder, points, progress, stop)
        for text in ending.notices(self._plan, progress):
            reporter.notice(text)
        if stop.signal_number is not None and ending.nothing_left(self._plan, progress) is None:
            if progress.step == start:
                raise signals.before_an_update(stop.signal_number)
            raise signals.after_update(stop.signal_number, progress.step, self.folder)

    def _open_report(self, built: Run, start_step: int) -> tuple[Reporter, LogPoints]:
        from trainer4090.opening import Occasion, log_points, reporter_of

        occasion = Occasion(self._plan, self._chosen, self.folder, start_step, self._live)
        self._reporter = reporter = reporter_of(occasion, built.device, self.leads)
        self._points = log_points(occasion, built, reporter, self._closers if self.leads else None)
        return reporter, self._points

    def close(self, finished: bool) -> None:
        """Write what is still on its way, then flush and close every sink; every rank finishes, or fails alone."""
        self._peak_gib = _peak_memory_gib(self._device)
        if finished:
            largest = self._ranks.maxima(list(self._peak_gib.values()))
            self._peak_gib = dict(zip(self._peak_gib, largest, strict=True))
        if self._points is not None:
            self._points.flush()
        for closer in self._closers:
            closer()
        if self._reporter is not None:
            evaluation = self._progress.evaluation if finished and self._progress is not None else {}
            self._reporter.close({f"eval/{name}": value for name, value in evaluation.items()})

    def leave(self) -> None:
        """Part from the other ranks, once everything is written."""
        self._ranks.close()

    def result(self, exit_code: int, problems: list[str]) -> dict[str, Any]:
        """Content of `result.json`; what is not known is absent."""
        progress = self._progress
        result: dict[str, Any] = {
            "status": STATUS.get(exit_code, "failed"),
            "exit_code": exit_code,
            "steps": 0 if progress is None else progress.step,
            "eval": {} if progress is None else progress.evaluation,
            "best": None if progress is None else ending.best(self._plan, progress),
            "stopped_early": (exit_code == 0 and progress and ending.stopped_early(self._plan, progress)) or None,
            "peak_memory_gib": self._peak_gib or None,
            "problems": problems or None,
        }
        if self._points is not None:
            summary = self._points.summary()
            result |= {"items_per_s": summary.items_per_s, "step_time_ms": summary.step_time_ms}
        result |= self._measured()
        return {key: value for key, value in result.items() if value is not None}


def restored(built: Run, state: dict[str, Any], path: Path | None) -> Progress:
    """Put a loaded state into a built run.

    Raises:
        CheckpointFileError: the file is of another model or of another version of trainer4090.
        DataError: it was trained on other classes.
    """
    from trainer4090 import loop

    resume.check_classes(state.get("data", {}), built.plan.evidence.data)
    try:
        if state["format"] != loop.STATE_FORMAT:
            raise ValueError(f"format {state['format']}, this version reads {loop.STATE_FORMAT}")
        return loop.restore(built, state)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        text = " ".join(str(error).split())
        problem = Problem(str(path), f"does not fit this run ({text})", "resume with the options it was trained with")
        raise CheckpointFileError(problem) from error


def _peak_memory_gib(used: torch.device | None) -> dict[str, float]:
    if used is None or used.type != "cuda":
        return {}  # not known on a CPU
    import torch

    return {
        "allocated": torch.cuda.max_memory_allocated(used) / GIB,
        "reserved": torch.cuda.max_memory_reserved(used) / GIB,
    }
