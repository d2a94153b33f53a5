"""JPEGs by the fast decoder: Pillow's pixels in every bit, and Pillow itself for whatever is no plain one."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import image_files as files
import numpy as np
import pytest
import torch
from PIL import Image

from trainer4090.build import prepared
from trainer4090.data import DATA
from trainer4090.data.pipeline import decode as module
from trainer4090.data.pipeline.decode import UnreadableImageError, decode
from trainer4090.data.pipeline.file_source import READ_AHEAD
from trainer4090.data.pipeline.jpeg import jpeg_content, planes_of_plain
from trainer4090.item_format import ImageFormat

COLOUR = ImageFormat(3, 40, 40, 44, (0.0,), (1.0,), ())
GREY = replace(COLOUR, channels=1)
WHOLE = replace(COLOUR, height=53, width=75, shorter_side=None)
"""Of `scene`, with no resizing."""


def scene() -> Image.Image:
    """Slopes, an edge and noise, on sides that no block of a JPEG divides."""
    down, right = np.mgrid[:53, :75]
    planes = np.stack([right * 3, down * 4, (right > 40) * 200], axis=-1)
    pixels = planes + np.random.default_rng(0).normal(0, 8, planes.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def jpeg(mode: str = "RGB", **options: object) -> bytes:
    return files.content(scene().convert(mode), "JPEG", **options)


def patched(content: bytes, offset: int, value: int) -> bytes:
    """`content` with one byte of its frame header, which begins with `offset` 0, replaced."""
    place = content.index(b"\xff\xc0") + offset
    return content[:place] + bytes([value]) + content[place + 1 :]


Outcome = list[int] | str


def outcome(content: bytes, item_format: ImageFormat) -> Outcome:
    """The pixels, or the text of the error."""
    try:
        return decode(io.BytesIO(content), item_format).flatten().tolist()
    except UnreadableImageError as error:
        return str(error).partition(" <")[0]  # the rest is an address


@pytest.fixture
def by_pillow(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, ImageFormat], Outcome]:
    """`outcome` without the fast decoder."""

    def without(content: bytes, item_format: ImageFormat) -> Outcome:
        with monkeypatch.context() as patch:
            patch.setattr(module, "planes_of_plain", lambda content, mode: None)
            return outcome(content, item_format)

    return without


@pytest.fixture
def decoded_fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by whether the fast decoder gave pixels, whenever it is asked."""
    answers: list[bool] = []

    def noting(content: bytes, mode: str) -> torch.Tensor | None:
        planes = planes_of_plain(content, mode)
        answers.append(planes is not None)
        return planes

    monkeypatch.setattr(module, "planes_of_plain", noting)
    return answers


PLAIN = {
    **{
        f"subsampling-{subsampling}-quality-{quality}": jpeg(subsampling=subsampling, quality=quality)
        for subsampling in ("4:4:4", "4:2:2", "4:2:0")
        for quality in (20, 75, 98)
    },
    "progressive": jpeg(progressive=True),
    "restart-markers": jpeg(restart_marker_rows=1),
    "optimized": jpeg(optimize=True),
    "grey": jpeg("L"),
    "grey-progressive": jpeg("L", progressive=True),
    "stored-as-rgb": jpeg(keep_rgb=True),
    "bytes-after-its-end": jpeg() + b"more",
}


@pytest.mark.parametrize("item_format", [COLOUR, GREY, WHOLE], ids=["colour", "grey", "whole"])
@pytest.mark.parametrize("content", PLAIN.values(), ids=PLAIN)
def test_the_pixels_are_those_of_pillow(
    content: bytes,
    item_format: ImageFormat,
    by_pillow: Callable[[bytes, ImageFormat], Outcome],
    decoded_fast: list[bool],
) -> None:
    fast = outcome(content, item_format)
    assert decoded_fast == [True]
    assert fast == by_pillow(content, item_format)


@pytest.mark.parametrize("item_format", [COLOUR, WHOLE], ids=["cropped", "whole"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_rotation_is_that_of_pillow(
    orientation: int,
    item_format: ImageFormat,
    by_pillow: Callable[[bytes, ImageFormat], Outcome],
    decoded_fast: list[bool],
) -> None:
    """0 and 9 mean nothing."""
    content = jpeg(exif=files.exif(orientation))
    found = outcome(content, item_format)
    assert decoded_fast == [True]
    assert found == by_pillow(content, item_format)
    assert (found == outcome(jpeg(), item_format)) == (orientation in (0, 1, 9))


def several_pictures() -> bytes:
    buffer = io.BytesIO()
    scene().save(buffer, "MPO", save_all=True, append_images=[scene().rotate(180)])
    return buffer.getvalue()


LEFT_TO_PILLOW = {
    "cmyk": (jpeg("CMYK"), True),
    "several-pictures": (several_pictures(), True),
    "12-bit": (patched(jpeg(), 4, 12), False),
    "lossless": (patched(jpeg(), 1, 0xC3), False),
    "cut-short": (jpeg()[:-40], False),
    "cut-before-its-end-marker": (jpeg()[:-2], False),
    "header-only": (jpeg()[:300], False),
    "two-bytes": (b"\xff\xd8", False),
}
"""Content, and whether Pillow makes pixels of it."""


@pytest.mark.parametrize(("content", "readable"), LEFT_TO_PILLOW.values(), ids=LEFT_TO_PILLOW)
def test_what_is_not_plain_is_left_to_pillow(
    content: bytes,
    readable: bool,
    by_pillow: Callable[[bytes, ImageFormat], Outcome],
    decoded_fast: list[bool],
) -> None:
    found = outcome(content, COLOUR)
    assert True not in decoded_fast
    assert isinstance(found, list) == readable, found
    assert found == by_pillow(content, COLOUR)


def test_a_damaged_file_gives_what_pillow_gives(by_pillow: Callable[[bytes, ImageFormat], Outcome]) -> None:
    """One bit is flipped, anywhere; or the header promises arithmetic coding, which some builds of libjpeg know."""
    arithmetic = patched(jpeg(), 1, 0xC9)
    assert outcome(arithmetic, COLOUR) == by_pillow(arithmetic, COLOUR)
    generator, content, kinds = np.random.default_rng(0), jpeg(), set()
    for _ in range(300):
        damaged = bytearray(content)
        damaged[generator.integers(len(damaged))] ^= 1 << generator.integers(8)
        found = outcome(bytes(damaged), COLOUR)
        assert found == by_pillow(bytes(damaged), COLOUR)
        kinds.add(type(found))
    assert kinds == {list, str}


def test_a_reduced_size_is_left_to_pillow(decoded_fast: list[bool]) -> None:
    large = files.content(scene().resize((750, 530)), "JPEG")
    decode(io.BytesIO(large), COLOUR)
    assert decoded_fast == []


@pytest.mark.parametrize(
    ("channels", "layout"), [(3, torch.channels_last), (1, torch.contiguous_format)], ids=["colour", "grey"]
)
def test_a_batch_lies_as_it_was_decoded(tmp_path: Path, channels: int, layout: torch.memory_format) -> None:
    """So that nothing moves channels on the host; grey has none to move."""
    for name in ("a", "b"):
        for number in range(5):
            files.write(tmp_path / name / f"{number}.jpg", scene(), "JPEG")
    entry = DATA.get("image_folder")
    data = entry.build(entry.config(path=str(tmp_path), size=40, channels=channels, augment=False), 0)
    images, _ = data.train.fetch(torch.arange(2), 0)
    assert not images.is_inference()
    assert images.is_contiguous(memory_format=layout)
    assert prepared(images, data.prepare, torch.float32, channels_last=False).is_contiguous()


def test_a_batch_is_its_samples(tmp_path: Path) -> None:
    """More than are read ahead; among them a grey one, a rotated one and one that Pillow reads."""
    for number in range(2 * READ_AHEAD + 3):
        image = Image.fromarray(np.roll(np.asarray(scene()), number, axis=1))
        contents = (
            files.content(image, "JPEG"),
            files.content(image.convert("L"), "JPEG"),
            files.content(image, "JPEG", exif=files.exif(6)),
            files.content(image, "PNG"),
        )
        path = tmp_path / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents[number % 4])
    entry = DATA.get("image_folder")
    source = entry.build(entry.config(path=str(tmp_path), size=40, val_fraction=0.1, flip=False), 0).train
    indices = torch.arange(len(source)).flip(0)
    images, labels = source.fetch(indices, 3)
    alone = [source.fetch(index[None], 3) for index in indices]
    assert len(images) > READ_AHEAD
    assert torch.equal(images, torch.cat([image for image, _ in alone]))
    assert torch.equal(labels, torch.cat([label for _, label in alone]))
    assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_a_file_that_comes_in_pieces_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scene.jpg"
    path.write_bytes(jpeg())
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, number: read(descriptor, min(number, 700)))
    assert jpeg_content(path) == jpeg()
