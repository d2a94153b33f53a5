"""Where numbers go: metrics.jsonl, TensorBoard, the console. When something is reported is the loop's decision.

Importing this package imports neither torch nor tensorboard nor rich.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

from trainer4090.report.console import Console
from trainer4090.report.exhibit import Exhibit
from trainer4090.report.metrics import Metrics

Notice = Callable[[str], None]
Result = TypeVar("Result")


class Sink(Protocol):
    """One place where numbers go."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Records the values of one log point; `values` are host numbers."""
        ...

    def close(self, final: Mapping[str, float]) -> None:
        """Writes out everything; `final` holds the metrics of the finished run, or nothing when it did not finish."""
        ...


class Gallery(Sink, Protocol):
    """A sink that shows more than numbers."""

    def show(self, step: int, exhibits: Sequence[Exhibit]) -> None:
        """Shows pictures and texts of one update."""
        ...


@final
class Reporter:
    """All sinks of a run. Rank 0 has one from `open_report`, every other rank `silent_report()`."""

    def __init__(self, sinks: Sequence[Sink], notice: Notice, gallery: Gallery | None = None) -> None:
        """Takes over `sinks`: closing the reporter closes them, in order. `gallery`: one of them."""
        self._sinks = tuple(sinks)
        self._gallery = gallery
        self._notice = notice
        self._closed = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values of one log point to every sink. A tag is written once a step.

        Raises:
            RunFolderError: metrics.jsonl or train.log cannot be written.
            ValueError: the reporter is closed.
        """
        if self._closed:
            raise ValueError("the reporter is closed")
        for sink in self._sinks:
            sink.write(step, values)

    def show(self, step: int, exhibits: Sequence[Exhibit]) -> None:
        """Shows pictures and texts where that can be done, in TensorBoard."""
        if self._gallery is not None:
            self._gallery.show(step, exhibits)

    def notice(self, text: str) -> None:
        """Shows `text` on the console and appends it to train.log."""
        self._notice(text)

    def close(self, final: Mapping[str, float]) -> None:
        """Closes every sink, the later ones also when an earlier one raises; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close, final)


def open_report(
    folder: Path,
    start_step: int,
    total_steps: int,
    hyperparameters: Mapping[str, Any],
    texts: Mapping[str, str],
    live: bool,
    eval_tags: Sequence[str] = (),
) -> Reporter:
    """Reporter that writes `metrics.jsonl`, `tb/` and `train.log` in the existing run folder.

    What earlier starts wrote after `start_step` is cut away. `hyperparameters`: nested tree. `texts`: title -> text
    shown in TensorBoard. `live`: a progress bar where stdout is a terminal, else lines. `eval_tags`: of an evaluation.

    Raises:
        RunFolderError: metrics.jsonl or train.log cannot be written. TensorBoard failing is a notice.
    """
    with ExitStack() as undo:
        metrics = Metrics(folder / "metrics.jsonl", start_step)
        undo.callback(metrics.close, {})
        console = Console(folder / "train.log", start_step, total_steps, live)
        undo.callback(console.close, {})
        if metrics.num_dropped:
            console.notice(f"metrics.jsonl cut back to step {start_step}: {metrics.num_dropped} lines dropped")
        board = _Optional(
            lambda: _open_board(folder / "tb", start_step, hyperparameters, texts, eval_tags), console.notice
        )
        undo.pop_all()
    return Reporter((metrics, board, console), console.notice, gallery=board)


def silent_report() -> Reporter:
    """Reporter that writes nothing: for ranks other than 0."""
    return Reporter((), lambda text: None)


def _open_board(
    folder: Path,
    start_step: int,
    hyperparameters: Mapping[str, Any],
    texts: Mapping[str, str],
    eval_tags: Sequence[str],
) -> Gallery:
    from trainer4090.report.tensorboard import Board

    return Board(folder, start_step, hyperparameters, texts, eval_tags)


@final
class _Optional:
    """A sink whose first failure is noticed and is its end: pictures are no reason to lose a training run."""

    def __init__(self, open_sink: Callable[[], Gallery], notice: Notice) -> None:
        self._notice = notice
        self._sink: Gallery | None = None
        self._sink = self._attempt(open_sink)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Records the values unless the sink has failed."""
        sink = self._sink
        if sink is not None:
            self._attempt(lambda: sink.write(step, values))

    def show(self, step: int, exhibits: Sequence[Exhibit]) -> None:
        """Shows them unless the sink has failed."""
        sink = self._sink
        if sink is not None:
            self._attempt(lambda: sink.show(step, exhibits))

    def close(self, final: Mapping[str, float]) -> None:
        """Closes the sink unless it has failed."""
        sink, self._sink = self._sink, None
        if sink is not None:
            self._attempt(lambda: sink.close(final))

    def _attempt(self, action: Callable[[], Result]) -> Result | None:
        try:
            return action()
        except Exception as error:  # full disk, closed file, protobuf of another version (a bare Exception)
            self._notice(f"TensorBoard is off for the rest of this run: {type(error).__name__}: {error}")
        failed, self._sink = self._sink, None
        if failed is not None:
            with suppress(Exception):  # the failure is noticed already; this only gives its file back
                failed.close({})
        return None
