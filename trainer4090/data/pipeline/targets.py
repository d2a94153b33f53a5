"""The check of class targets on the host, before a kernel meets them. Imports no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer4090.errors import DataError, Problem


def check_targets(targets: Any, num_classes: int, ignore_index: int | None, key: str) -> int:
    """Number of ignored targets, when all others are classes in [0, num_classes).

    `targets`: integers (samples, ...), an array or a tensor on the host. `key`: the file or configuration key to name.
    On a GPU a target out of range is a device-side assert at an unrelated line that costs the CUDA context.

    Raises:
        DataError: a target is out of range; the message has its sample, its value and the allowed range.
    """
    values = np.asarray(targets)
    ignored = np.zeros(values.shape, dtype=bool) if ignore_index is None else values == ignore_index
    wrong = ~ignored & ((values < 0) | (values >= num_classes))
    if wrong.any():
        position = tuple(int(index) for index in np.argwhere(wrong)[0])
        given = f"sample {position[0]} has target {int(values[position])}"
        hint = _hint(values[~ignored], num_classes, ignore_index)
        raise DataError(Problem(key, given, f"targets lie in [0, {num_classes}); {hint}"))
    return int(ignored.sum())


def _hint(values: np.ndarray, num_classes: int, ignore_index: int | None) -> str:
    low, high = int(values.min()), int(values.max())
    if low == 1 and high == num_classes:
        return "they seem to start at 1: subtract 1"
    if low < 0:
        remedy = "drop samples without a class"
        return remedy if ignore_index is None else f"{remedy}, or give their value as loss.ignore_index"
    return f"for {high + 1} classes give model.num_classes={high + 1}"
