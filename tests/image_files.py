"""Image files for tests, drawn with Pillow: small ones of every kind, and folders of them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 8


def flat(mode: str, colour: object, size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    """An image of one colour."""
    return Image.new(mode, size, colour)  # type: ignore[arg-type]


def sixteen_bits(value: int, dtype: str = "uint16") -> Image.Image:
    """A grey image of one value with 16 bits, or of another dtype."""
    return Image.fromarray(np.full((SIDE, SIDE), value, dtype=dtype))


def palette(transparent: int | None = None) -> Image.Image:
    """A palette image whose first entry is (10, 20, 30); entry `transparent` is."""
    image = flat("P", 0)
    image.putpalette([10, 20, 30, 200, 100, 0] + [0] * 762)
    if transparent is not None:
        image.info["transparency"] = transparent
    return image


def halves(width: int = 16, height: int = 8) -> Image.Image:
    """Red on the left, blue on the right."""
    image = flat("RGB", (255, 0, 0), (width, height))
    image.paste((0, 0, 255), (width // 2, 0, width, height))
    return image


def animation() -> bytes:
    """A GIF whose first frame is red and whose second is blue."""
    buffer = io.BytesIO()
    frames = [flat("RGB", (255, 0, 0)), flat("RGB", (0, 0, 255))]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def content(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """The image as a file of that kind."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    """A note that asks for a rotation."""
    note = Image.Exif()
    note[0x0112] = orientation
    return note


def write(path: Path, image: Image.Image | None = None, kind: str = "PNG") -> Path:
    """A file, grey noise of its own unless an image is given, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if image is None:
        seed = int.from_bytes(str(path).encode()[-6:], "big")
        image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8))
    path.write_bytes(content(image, kind))
    return path


COLOURS = {"a": (255, 0, 0), "b": (0, 255, 0), "c": (0, 0, 255)}


def coloured(root: Path, counts: dict[str, int]) -> Path:
    """A folder for each class `a`, `b`, `c`, with that many images of its own colour; 0 leaves it empty."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            write(root / name / f"{number}.png", flat("RGB", COLOURS[name]))
    return root
