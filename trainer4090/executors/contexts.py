"""Several contexts around a forward as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

MakeContext = Callable[[], AbstractContextManager[Any]]


def nested(*makers: MakeContext) -> MakeContext:
    """What makes all contexts, the first one outermost."""
    if len(makers) == 1:
        return makers[0]

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for maker in makers:
                stack.enter_context(maker())
            yield

    return entered
