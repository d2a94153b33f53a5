"""Runs pytest in copies of the project, each in a fork of one process that has imported torch: two seconds less a run.

`python tests/forge.py` reads a JSON line for each run on standard input, `{"copy", "nodes", "output"}`, and answers
with its exit status. Nothing of the project is imported before the fork, so that each child finds the copy's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-x", "--tb=line", "--show-capture=no")
LIMIT_S = 300
"""A broken rule may let a test wait for ever."""


class Forge:
    """The process, started by the first run and ended with the block."""

    def __enter__(self) -> Forge:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def run_tests(self, copy: Path, nodes: Sequence[str]) -> tuple[int, str]:
        """Exit status of pytest and the end of what it printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        output = copy / "output.txt"
        order = {"copy": str(copy), "nodes": [f"tests/{node}" for node in nodes], "output": str(output)}
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()), output.read_text(errors="replace")[-4000:]


def _run(copy: str, nodes: list[str], output: str) -> int:
    """In the child: pytest on the copy, everything printed to a file."""
    import pytest

    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.alarm(LIMIT_S)
    os.chdir(copy)
    sys.path.insert(0, copy)
    os.environ.update(PYTHONPATH=copy, PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    return int(pytest.main([*OPTIONS, *nodes]))


def _serve() -> None:
    import torch
    import torchvision  # noqa: F401  # imported for the children

    torch.set_num_threads(1)  # before the fork: a pool of threads does not survive it
    assert "trainer4090" not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = _run(**json.loads(line))
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
