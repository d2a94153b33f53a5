"""How deep the parts of a model lie: stem, block after block, head. Freezing and layer-wise rates share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def depths(names: Iterable[str], blocks: Sequence[str]) -> dict[str, int]:
    """Name -> 0 before the first block, k in block k of n (from 1) or between it and the next, n + 1 after the last.

    `names`: of parameters or submodules, in the order in which the model defines them. What holds blocks, like a
    sequence of them, has no depth of its own.
    """
    found: dict[str, int] = {}
    reached = 0
    for name in names:
        inside = next((index for index, block in enumerate(blocks, start=1) if covers(block, name)), None)
        if inside is None and (not name or any(covers(name, block) for block in blocks)):
            continue
        reached = reached if inside is None else inside
        after_all = inside is None and blocks and reached == len(blocks)
        found[name] = reached + 1 if after_all else reached
    return found


def covers(root: str, name: str) -> bool:
    """Whether `name` is `root` or lies below it."""
    return name == root or name.startswith(f"{root}.")
