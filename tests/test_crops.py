"""Boxes that are cropped: the usual ones for held-out images, and random ones that keep their promises."""

from __future__ import annotations

import itertools
import random

import pytest

from trainer4090.data.pipeline.crops import NUM_ATTEMPTS, NUMBERS_AN_ATTEMPT, centred_box, random_box

CENTRED = [
    pytest.param(320, 256, (224, 224), 256, (48, 16, 272, 240), id="landscape"),
    pytest.param(256, 320, (224, 224), 256, (16, 48, 240, 272), id="portrait"),
    pytest.param(512, 512, (224, 224), 256, (32, 32, 480, 480), id="twice as large"),
    pytest.param(8, 8, (8, 8), 8, (0, 0, 8, 8), id="as it is"),
    pytest.param(90, 30, (20, 20), None, (0, 0, 90, 30), id="stretched"),
    pytest.param(256, 256, (224, 448), 256, (0, 64, 256, 192), id="enlarged until the crop fits"),
]


@pytest.mark.parametrize(("width", "height", "size", "shorter_side", "box"), CENTRED)
def test_centred_boxes(
    width: int, height: int, size: tuple[int, int], shorter_side: int | None, box: tuple[float, ...]
) -> None:
    assert centred_box(width, height, size, shorter_side) == pytest.approx(box)


@pytest.mark.parametrize("shorter_side", [None, 7, 8, 100])
def test_every_box_lies_in_its_image(shorter_side: int | None) -> None:
    for width, height in itertools.product(range(1, 40), repeat=2):
        left, upper, right, lower = centred_box(width, height, (7, 5), shorter_side)
        assert 0 <= left < right <= width and 0 <= upper < lower <= height


def draw(generator: random.Random) -> list[list[float]]:
    return [[generator.random() for _ in range(NUMBERS_AN_ATTEMPT)] for _ in range(NUM_ATTEMPTS)]


@pytest.mark.parametrize("size", [(20, 20), (10, 30)])
@pytest.mark.parametrize("smallest", [0.08, 0.7])
def test_random_boxes_keep_area_and_shape(size: tuple[int, int], smallest: float) -> None:
    generator = random.Random(0)
    boxes = [random_box(200, 150, size, smallest, draw(generator)) for _ in range(2000)]
    areas, shapes, places = [], [], set()
    for left, upper, right, lower in boxes:
        assert 0 <= left < right <= 200 and 0 <= upper < lower <= 150
        areas.append((right - left) * (lower - upper) / (200 * 150))
        shapes.append((right - left) / (lower - upper) / (size[1] / size[0]))
        places.add((left, upper))
    assert min(shapes) > 0.7 and max(shapes) < 1.4
    fits = size == (20, 20) or smallest < 0.5  # a box of 0.7 of the area and three times as wide as high does not
    assert not fits or (min(areas) > smallest * 0.9 and len(places) > 300)
    assert size != (20, 20) or max(areas) > 0.9


def test_an_image_that_no_box_fits_is_cropped_in_the_middle() -> None:
    assert random_box(1000, 10, (20, 20), 0.9, draw(random.Random(0))) == pytest.approx(
        (493.333, 0, 506.667, 10), abs=0.01
    )
    assert random_box(1, 1, (20, 20), 0.08, draw(random.Random(0))) == (0, 0, 1, 1)
