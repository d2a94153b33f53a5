"""Types of configuration fields, and the strict reader that turns a plain tree into a frozen record.

The reader never stops at the first mistake: it appends every problem to a list and returns a record only when there
was none. It knows the few types that a configuration needs (`bool int float str`, `Literal`, `None`, `tuple[T, ...]`
and unions of these), so that each message can say what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trainer4090.errors import Problem

Record = TypeVar("Record")


@dataclasses.dataclass(frozen=True)
class Range:
    """Allowed interval of a number; `None` leaves a side open, the flags exclude the end itself."""

    low: float | None = None
    high: float | None = None
    above_low: bool = False
    below_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside; NaN never does."""
        over = self.low is None or (value > self.low if self.above_low else value >= self.low)
        under = self.high is None or (value < self.high if self.below_high else value <= self.high)
        return over and under and value == value

    def __str__(self) -> str:
        parts = []
        if self.low is not None:
            parts.append(f"{'above' if self.above_low else 'at least'} {self.low:g}")
        if self.high is not None:
            parts.append(f"{'below' if self.below_high else 'at most'} {self.high:g}")
        return " and ".join(parts)


PositiveInt = Annotated[int, Range(low=1)]
Count = Annotated[int, Range(low=0)]
PositiveFloat = Annotated[float, Range(low=0, high=float("inf"), above_low=True, below_high=True)]
NonNegativeFloat = Annotated[float, Range(low=0, high=float("inf"), below_high=True)]
Fraction = Annotated[float, Range(low=0, high=1)]
Probability = Annotated[float, Range(low=0, high=1, below_high=True)]
Auto = Literal["auto"]


class _Mismatch(Exception):
    """A value that its field does not allow; the text says what is allowed."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest in spelling to `name`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def suggestion(name: str, known: Iterable[str], what: str) -> str:
    """Remedy for an unknown name: the nearest one first, then all."""
    names = sorted(known)
    close = nearest(name, names)
    listing = f"{what}: {', '.join(names)}" if names else f"there are no {what}"
    return f"did you mean {close}? {listing}" if close else listing


def describe(annotation: Any) -> str:
    """Plain words for what a field of this type allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{describe(arguments[0])} {arguments[1]}".strip()
    if origin is Literal:
        return " or ".join(str(argument) for argument in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if origin is tuple:
        size = "" if arguments[-1] is Ellipsis else f" of {len(arguments)}"
        return f"a list{size}, each {describe(arguments[0])}"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a text", type(None): "null"}
    return words.get(annotation, str(annotation))


def convert(value: Any, annotation: Any) -> Any:
    """`value` as the type asks for it (an int becomes a float, a list a tuple).

    Raises:
        _Mismatch: the value is of another type or outside the range.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        result = convert(value, arguments[0])
        if not arguments[1].holds(result):
            raise _Mismatch(describe(annotation))
        return result
    if origin is Literal:
        # `True == 1`, hence the second condition.
        if any(value == allowed and type(value) is type(allowed) for allowed in arguments):
            return value
        raise _Mismatch(describe(annotation))
    if origin in (Union, types.UnionType):
        return _convert_union(value, annotation, arguments)
    if origin is tuple:
        fixed = arguments[-1] is not Ellipsis
        if not isinstance(value, (list, tuple)) or (fixed and len(value) != len(arguments)):
            raise _Mismatch(describe(annotation))
        return tuple(convert(item, arguments[0]) for item in value)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if annotation is type(None) and value is None:
        return None
    if annotation in (bool, int, float, str) and type(value) is annotation:
        return value
    raise _Mismatch(describe(annotation))


def _convert_union(value: Any, annotation: Any, arguments: tuple[Any, ...]) -> Any:
    for argument in arguments:
        try:
            return convert(value, argument)
        except _Mismatch:
            continue  # the next member may allow it
    raise _Mismatch(describe(annotation))


def field_types(record_type: type) -> dict[str, Any]:
    """Field name -> annotation of a Config record, string annotations resolved."""
    hints = get_type_hints(record_type, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(record_type)}


def read(record_type: type[Record], tree: Any, key: str, problems: list[Problem]) -> Record | None:
    """A `record_type` made of the mapping `tree`, or None after its problems were appended.

    Every field must be present and no other key may be: a tree comes from a YAML that lists all fields, so a missing
    one was deleted on the command line and an extra one is a typing error.
    """
    expected = field_types(record_type)
    if not isinstance(tree, Mapping):
        problems.append(Problem(key, f"{tree!r} is no section", f"a section has the keys {', '.join(expected)}"))
        return None
    before = len(problems)
    for name in tree:
        if name not in expected:
            problems.append(Problem(_join(key, name), "unknown key", suggestion(str(name), expected, "keys here")))
    values = {}
    for name, annotation in expected.items():
        if name not in tree:
            problems.append(Problem(_join(key, name), "missing", f"give {describe(annotation)}"))
            continue
        try:
            values[name] = convert(tree[name], annotation)
        except _Mismatch as mismatch:
            problems.append(Problem(_join(key, name), shown(tree[name]), f"allowed is {mismatch}"))
    return record_type(**values) if len(problems) == before else None


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def shown(value: Any) -> str:
    """A value as the user would type it in YAML."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)
