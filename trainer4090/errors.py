"""Errors of trainer4090. The exit code of the process lives on the class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the three parts that every message has."""

    key: str
    """Configuration key or file that the problem is about."""
    given: str
    """What was given or found."""
    remedy: str
    """What is allowed, or what to type instead."""

    def __str__(self) -> str:
        return f"{self.key}: {self.given}; {self.remedy}"


class TrainerError(Exception):
    """One or more problems that end the process; every problem is printed on a line of its own."""

    exit_code: ClassVar[int] = 1
    label: ClassVar[str] = "error"
    """What the line on stderr calls it."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ConfigError(TrainerError):
    """The configuration cannot be run as written."""

    exit_code = 2


class DataError(TrainerError):
    """A data set is missing, unreadable or not what it claims to be."""

    exit_code = 3


class MachineError(TrainerError):
    """This machine lacks a driver, a compiler or a device that the run needs."""

    exit_code = 4


class NonFiniteError(TrainerError):
    """The loss is not a finite number any more."""

    exit_code = 5


class MemoryExhaustedError(TrainerError):
    """The device has no memory left for this run."""

    exit_code = 6


class CheckpointFileError(TrainerError):
    """A checkpoint file is missing, damaged or of another run."""

    exit_code = 7


class LostRankError(TrainerError):
    """One of the processes that train together was killed, raised, hung or left before the others."""

    exit_code = 8


class RunFolderError(TrainerError):
    """The run folder is locked, not empty or not writable."""

    exit_code = 9


class InterruptedRunError(TrainerError):
    """SIGINT or SIGTERM ended the run; the problem says what is saved."""

    label = "interrupted"

    def __init__(self, signal_number: int, *problems: Problem) -> None:
        super().__init__(*problems)
        self.signal_number = signal_number

    @property
    def status(self) -> int:
        """Exit code by the shell's convention: 128 + signal number."""
        return 128 + self.signal_number


def exit_code_of(error: BaseException) -> int:
    """Exit code that `error` ends the process with; 1 for what we did not foresee."""
    if isinstance(error, InterruptedRunError):
        return error.status
    return error.exit_code if isinstance(error, TrainerError) else 1


def lines_of(error: BaseException) -> list[str]:
    """Lines for stderr: one a problem, or one for an exception that is a defect of ours."""
    if isinstance(error, TrainerError):
        return [f"trainer4090: {error.label}: {problem}" for problem in error.problems]
    text = " ".join(str(error).split()) or "no message"
    return [f"trainer4090: error: {type(error).__name__}: {text}; a defect of ours, add debug=true for the traceback"]
