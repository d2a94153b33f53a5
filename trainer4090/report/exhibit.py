"""What is shown of a model beside numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """An image."""

    tag: str
    png: bytes
    height: int
    width: int


@dataclass(frozen=True)
class Passage:
    """A text."""

    tag: str
    text: str


Exhibit = Picture | Passage
