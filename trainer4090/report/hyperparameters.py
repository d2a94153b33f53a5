"""A configuration tree as the flat numbers, texts and truth values that TensorBoard's hparams can hold."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

Scalar = bool | float | str


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Dotted key -> value. Every key of the tree is there: null and lists are their JSON text, other things `str`."""
    result: dict[str, Scalar] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{key}.")
        else:
            result[key] = scalar(value)
    return result


def scalar(value: Any) -> Scalar:
    """`value` itself where hparams can hold it exactly, else a text of it."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Real):  # numpy's scalars are registered as such
        number = float(value)
        return number if math.isfinite(number) and number == value else str(value)
    if value is None or isinstance(value, (list, tuple, dict)):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
