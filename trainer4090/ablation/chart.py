"""The lines as a picture: a bar a row, with the spread of its processes, the speed-up, and what failed in words."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from trainer4090.ablation.line import Line, number

if TYPE_CHECKING:
    from PIL import ImageDraw

WIDTH, ROW_HEIGHT, TOP, BOTTOM = 1400, 64, 120, 48
LABELS, BARS, MARGIN = 330, 700, 40
"""Width of the column of labels and of the longest bar; the rest is for figures."""
BAR_HEIGHT = 30
INK, FAINT, GRID, BAD = "#1f2933", "#7b8794", "#e4e7eb", "#c0392b"
FIRST_BAR, BAR, FASTEST = "#9fb3c8", "#3e7cb1", "#2a9d6f"
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 28, 20, 16


def size_of(num_lines: int) -> tuple[int, int]:
    """Width and height of the picture in pixels."""
    return WIDTH, TOP + num_lines * ROW_HEIGHT + BOTTOM


def png(lines: Sequence[Line], title: str, device: str) -> bytes:
    """The picture as the content of a PNG file."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", size_of(len(lines)), "white")
    page = _Page(ImageDraw.Draw(image))
    page.text((MARGIN, 28), title, INK, TITLE_SIZE)
    page.text((MARGIN, 70), f"items/s on {device}; the thin line is the range over the processes", FAINT, SMALL_SIZE)
    largest = max((line.items_per_s_high or 0.0 for line in lines), default=0.0)
    fastest = max((line.items_per_s or 0.0 for line in lines), default=0.0)
    page.axis(TOP, TOP + len(lines) * ROW_HEIGHT)
    for index, line in enumerate(lines):
        colour = FASTEST if line.items_per_s == fastest else FIRST_BAR if index == 0 else BAR
        page.row(TOP + index * ROW_HEIGHT, line, largest, colour)
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


@final
class _Page:
    """The drawing of one picture."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self._draw = draw

    def axis(self, top: int, bottom: int) -> None:
        """Draws where the bars begin, and quarters of the longest."""
        for quarter in range(5):
            across = MARGIN + LABELS + BARS * quarter // 4
            self._draw.line((across, top - 8, across, bottom), INK if quarter == 0 else GRID, 2 if quarter == 0 else 1)

    def row(self, top: int, line: Line, largest: float, colour: str) -> None:
        """Draws one line: its label, its bar, its figures."""
        middle = top + ROW_HEIGHT // 2
        self.text((MARGIN, middle - 22), self._cut(line.label, TEXT_SIZE, LABELS - 16), INK, TEXT_SIZE)
        self.text((MARGIN, middle + 4), _beneath(line), FAINT, SMALL_SIZE)
        left = MARGIN + LABELS
        if line.items_per_s is None or largest <= 0:
            words = f"{line.status}: {line.reason}" if line.reason else line.status
            self.text((left + 16, middle - 10), self._cut(words, SMALL_SIZE, WIDTH - left - 56), BAD, SMALL_SIZE)
            return
        scale = BARS / largest
        end = left + line.items_per_s * scale
        self._draw.rectangle((left + 1, middle - BAR_HEIGHT // 2, max(end, left + 2), middle + BAR_HEIGHT // 2), colour)
        low, high = line.items_per_s_low or line.items_per_s, line.items_per_s_high or line.items_per_s
        if high > low:
            self._draw.line((left + low * scale, middle, left + high * scale, middle), INK, 2)
            for edge in (low, high):
                self._draw.line((left + edge * scale, middle - 7, left + edge * scale, middle + 7), INK, 2)
        beside = left + high * scale + 14
        self.text((beside, middle - 22), _figures(line), INK, TEXT_SIZE)
        wrong = _wrong(line)
        self.text((beside, middle + 4), wrong or _memory(line), BAD if wrong else FAINT, SMALL_SIZE)

    def text(self, place: tuple[float, float], words: str, colour: str, size: int) -> None:
        """Writes one line of text from its upper left corner on."""
        self._draw.text(place, words, colour, _font(size))

    def _cut(self, words: str, size: int, width: int) -> str:
        """As much of the text as fits."""
        if self._draw.textlength(words, _font(size)) <= width:
            return words
        while words and self._draw.textlength(words + "...", _font(size)) > width:
            words = words[:-1]
        return words + "..."


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _beneath(line: Line) -> str:
    return f"batch {line.batch}" + (f" by {line.micro_batch}" if line.micro_batch != line.batch else "")


def _figures(line: Line) -> str:
    speed_up = "" if line.speed_up is None else f"   {line.speed_up:.2f}x"
    return f"{number(line.items_per_s or 0.0)}{speed_up}"


def _memory(line: Line) -> str:
    return "" if line.peak_allocated_gib is None else f"{line.peak_allocated_gib:.2f} GiB"


def _wrong(line: Line) -> str:
    """What makes the speed of no use."""
    if line.doubts:
        return f"not active: {line.doubts[0]}"
    return "losses DIFFER from fp32" if line.parity is not None and line.parity.verdict == "DIFFERS" else ""
