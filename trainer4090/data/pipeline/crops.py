"""Which part of an image becomes a sample: boxes (left, upper, right, lower) in its pixels. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

Box = tuple[float, float, float, float]
NUM_ATTEMPTS = 10
"""Random boxes that are tried before the largest central one is taken."""
NUMBERS_AN_ATTEMPT = 4
LARGEST_STRETCH = 4 / 3
"""Of a random box, relative to the shape of the sample."""


def centred_box(width: int, height: int, size: tuple[int, int], shorter_side: int | None) -> Box:
    """The box that resizing the shorter side to `shorter_side` and cropping `size` (height, width) would keep.

    Where the crop would not fit, the image is enlarged until it does. None keeps the whole image, stretched.
    """
    if shorter_side is None:
        return 0.0, 0.0, float(width), float(height)
    scale = max(shorter_side / min(width, height), size[0] / height, size[1] / width)
    # The division can round to a hair more than there is, which Pillow refuses.
    return _centred(width, height, min(size[1] / scale, width), min(size[0] / scale, height))


def random_box(
    width: int, height: int, size: tuple[int, int], smallest: float, attempts: Sequence[Sequence[float]]
) -> Box:
    """A box of `smallest` to all of the area, stretched by up to 4/3 against `size` (height, width).

    `attempts`: NUM_ATTEMPTS x NUMBERS_AN_ATTEMPT numbers uniform on [0, 1).
    Source: C. Szegedy et al., Going deeper with convolutions (2014), section 6.
    """
    shape, stretch = size[1] / size[0], math.log(LARGEST_STRETCH)
    for area_number, shape_number, down, right in attempts:
        area = width * height * (smallest + (1 - smallest) * area_number)
        ratio = shape * math.exp(stretch * (2 * shape_number - 1))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left, upper = int(right * (width - box_width + 1)), int(down * (height - box_height + 1))
            return float(left), float(upper), float(left + box_width), float(upper + box_height)
    ratio = min(max(width / height, shape / LARGEST_STRETCH), shape * LARGEST_STRETCH)
    return _centred(width, height, min(width, height * ratio), min(height, width / ratio))


def _centred(width: int, height: int, box_width: float, box_height: float) -> Box:
    left, upper = (width - box_width) / 2, (height - box_height) / 2
    return left, upper, left + box_width, upper + box_height
