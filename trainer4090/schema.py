"""Types of configuration fields, and the strict reader that turns a plain tree into a frozen record.

The reader never stops at the first mistake: it appends every problem to a list and returns a record only when there
was none. It knows the few types that a configuration needs (`bool int float str`, ranges and patterns of these,
`Literal`, `None`, `tuple[T, ...]` and unions of these), so that each message can say what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trainer4090.errors import Problem

Record = TypeVar("Record")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Allowed form of a text, and that form in words."""

    form: str
    words: str

    def holds(self, value: str) -> bool:
        """Whether the whole of `value` has the form."""
        return re.fullmatch(self.form, value) is not None

    def __str__(self) -> str:
        return self.words


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
        if self.high == float("inf"):
            parts.append("finite")
        elif self.high is not None:
            parts.append(f"{'below' if self.below_high else 'at most'} {self.high:g}")
        return " and ".join(parts)


PositiveInt = Annotated[int, Range(low=1)]
Count = Annotated[int, Range(low=0)]
PositiveFloat = Annotated[float, Range(low=0, high=float("inf"), above_low=True, below_high=True)]
NonNegativeFloat = Annotated[float, Range(low=0, high=float("inf"), below_high=True)]
Fraction = Annotated[float, Range(low=0, high=1)]
Probability = Annotated[float, Range(low=0, high=1, below_high=True)]
Auto = Literal["auto"]


class _MismatchError(Exception):
    """A value that its field does not allow; the text says what is allowed."""


NO_DEFAULT = "???"  # in place of a value that must be given: OmegaConf's own mark
LONGEST_LISTING = 12
"""Names that an error line may list before they hide what it says."""
LONGEST_VALUE = 100
"""Characters of a value that an error line shows."""
NUM_NEAREST = 5
ALL_KEYS = "trainer4090 --cfg job"
"""The command that lists every key."""
_CLOSE = 0.6
"""Similarity from which a name may be what was meant; difflib's own default."""
_TIE = 0.15
"""Names less close than the closest by more than this are not worth naming beside it."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Known names close in spelling to `name`, the closest first; dotted ones also count by their last part."""

    def unlikeness(other: str) -> tuple[float, float]:
        pairs = ((name, other), (name.rpartition(".")[2], other.rpartition(".")[2]))
        whole, last = (-difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
        return min(whole, last), whole

    scored = sorted((*unlikeness(other), other) for other in known)
    return [other for score, _, other in scored[:NUM_NEAREST] if score <= min(scored[0][0] + _TIE, -_CLOSE)]


def suggestion(name: str, known: Iterable[str], what: str, listed_by: str | None = None) -> str:
    """Remedy for an unknown name: the nearest one, then all; of a long list only the nearest few and who prints it."""
    names = sorted(known)
    if not names:
        return f"there are no {what}"
    close = nearest(name, names)
    if len(names) <= LONGEST_LISTING:
        listing = f"{what}: {', '.join(names)}"
        return f"did you mean {close[0]}? {listing}" if close else listing
    listing = f"all {what}: {listed_by}" if listed_by else f"there are {len(names)} {what}"
    return f"did you mean {' or '.join(close)}? {listing}" if close else listing


def describe(annotation: Any) -> str:
    """Plain words for what a field of this type allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if isinstance(arguments[1], Pattern):
            return str(arguments[1])
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
        _MismatchError: the value is of another type or outside the range.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        result = _converted(value, arguments[0], annotation)
        if not arguments[1].holds(result):
            raise _MismatchError(describe(annotation))
        return result
    if origin is Literal:
        # `True == 1`, hence the second condition.
        if any(value == allowed and type(value) is type(allowed) for allowed in arguments):
            return value
        raise _MismatchError(describe(annotation))
    if origin in (Union, types.UnionType):
        return _convert_union(value, annotation, arguments)
    if origin is tuple:
        return _convert_list(value, annotation, arguments)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        record = read(annotation, value, "", [])
        if record is None:
            raise _MismatchError(describe(annotation))
        return record
    return _convert_plain(value, annotation)


def _convert_list(value: Any, annotation: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    fixed = arguments[-1] is not Ellipsis
    if not isinstance(value, (list, tuple)) or (fixed and len(value) != len(arguments)):
        raise _MismatchError(describe(annotation))
    return tuple(_converted(item, arguments[0], annotation) for item in value)


def _convert_plain(value: Any, annotation: Any) -> Any:
    if annotation is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _MismatchError(describe(annotation)) from None
    if type(value) is annotation:
        return value
    raise _MismatchError(describe(annotation))


def _converted(value: Any, inner: Any, whole: Any) -> Any:
    """`value` as `inner`; a mismatch names the `whole` type that it stands in."""
    try:
        return convert(value, inner)
    except _MismatchError:
        raise _MismatchError(describe(whole)) from None


def _convert_union(value: Any, annotation: Any, arguments: tuple[Any, ...]) -> Any:
    for argument in arguments:
        try:
            return convert(value, argument)
        except _MismatchError:
            continue  # the next member may allow it
    raise _MismatchError(describe(annotation))


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
        problems.append(Problem(key, f"{shown(tree)} is no section", f"its keys: {', '.join(expected) or 'none'}"))
        return None
    before = len(problems)
    for name in tree:
        if name not in expected:
            remedy = suggestion(str(name), expected, "keys here", ALL_KEYS)
            problems.append(Problem(_join(key, name), "unknown key", remedy))
    values = {}
    for name, annotation in expected.items():
        if name not in tree:
            problems.append(Problem(_join(key, name), "missing", f"give {describe(annotation)}"))
            continue
        if tree[name] == NO_DEFAULT:
            remedy = f"it has no default: type {_join(key, name)}=... with {describe(annotation)}"
            problems.append(Problem(_join(key, name), "no value", remedy))
            continue
        try:
            values[name] = convert(tree[name], annotation)
        except _MismatchError as mismatch:
            problems.append(Problem(_join(key, name), shown(tree[name]), f"allowed is {mismatch}"))
    if len(problems) > before:
        return None
    try:
        return record_type(**values)
    except ValueError as error:  # of its __post_init__, which sees how the values go together
        problems.append(Problem(key, " ".join(str(error).split()).replace(";", ","), "give values that go together"))
        return None


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def shown(value: Any) -> str:
    """A value as the user would type it in YAML, a long one cut."""
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
