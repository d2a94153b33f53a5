"""From the ends of all ranks to the one error of the run. Imports no torch."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from trainer4090 import checkpoint_file, signals
from trainer4090.errors import (
    CheckpointFileError,
    ConfigError,
    DataError,
    InterruptedRunError,
    LostRankError,
    MachineError,
    MemoryExhaustedError,
    NonFiniteError,
    Problem,
    RunFolderError,
    TrainerError,
)
from trainer4090.launch.supervisor import End

_KINDS: dict[int, type[TrainerError]] = {
    kind.exit_code: kind
    for kind in (
        *(ConfigError, DataError, MachineError, NonFiniteError, MemoryExhaustedError, CheckpointFileError),
        *(LostRankError, RunFolderError),
    )
}
_INTERRUPTED = (130, 143)


def of_ends(ends: Sequence[End], stopped_by: int | None, folder: Path) -> TrainerError | None:
    """The error of a run, None when every rank ended well. `stopped_by`: a signal that was passed on to the ranks."""
    failed = [end for end in ends if not end.well]
    if not failed:
        return None
    for end in failed:
        if end.report is not None and end.report.exit_code in _INTERRUPTED:
            return InterruptedRunError(end.report.exit_code - 128, *end.report.problems)
    first = first_of(failed)
    if first.report is None and stopped_by is not None and first.code in (-stopped_by, 128 + stopped_by):
        return signals.before_an_update(stopped_by)
    kind = None if first.report is None else _KINDS.get(first.report.exit_code)
    if first.report is not None and kind is not None:
        return kind(*first.report.problems)
    given = f"rank {first.rank} of {len(ends)} was lost: {_told(first)}"
    return LostRankError(Problem("parallelism", given, _remedy(folder)))


def first_of(failed: Sequence[End]) -> End:
    """The rank that failed first; one that was ended for another's failure, or met only that, is no cause."""

    def order(end: End) -> tuple[bool, bool, float]:
        lost_contact = end.report is not None and end.report.lost_contact
        return end.killed, lost_contact, end.at_s if end.report is None else end.report.at_s

    return min(failed, key=order)


def _told(end: End) -> str:
    if end.stalled is not None:
        return f"it {end.stalled}"
    if end.report is not None and end.report.text:
        return end.report.text
    if end.code < 0:
        hint = ", mostly for lack of memory" if end.code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-end.code).name}{hint}"
    return f"it ended with exit {end.code} before the run did"


def _remedy(folder: Path) -> str:
    files = checkpoint_file.files(folder)
    if not files:
        return f"its output is in {folder / 'ranks'}; nothing was saved yet, the same command starts again"
    step = checkpoint_file.step_of(files[0])
    return f"its output is in {folder / 'ranks'}; resume={folder} goes on from update {step}"
