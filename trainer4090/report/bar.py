"""The live progress bar; the only file that imports rich."""

from __future__ import annotations

from typing import TextIO, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column


@final
class Bar:
    """A bar that is drawn when it is told to, without a thread."""

    def __init__(self, stream: TextIO, start_step: int, total_steps: int) -> None:
        """Takes the last row of the terminal behind `stream`."""
        columns = (
            TextColumn("step {task.completed}/{task.total}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20),  # leaves room for both texts on 80 columns
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)),
        )
        self._progress = Progress(*columns, console=Console(file=stream), auto_refresh=False)
        self._task = self._progress.add_task("train", total=total_steps, completed=start_step, state="")
        self._progress.start()

    def progress(self, step: int, state: str) -> None:
        """Redraws the bar."""
        self._progress.update(self._task, completed=step, state=state, refresh=True)

    def line(self, text: str) -> None:
        """Nothing: the bar tells it."""

    def evaluation(self, text: str) -> None:
        """Prints `text` above the bar, where earlier evaluations stand."""
        self.notice(text)

    def notice(self, text: str) -> None:
        """Prints `text` above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Draws the bar for the last time and gives the row back."""
        self._progress.stop()
