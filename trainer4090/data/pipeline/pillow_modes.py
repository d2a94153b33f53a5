"""What is made of an image that Pillow has opened: upright, in mode L or RGB. The policy is in `decode`."""

from __future__ import annotations

import numpy as np
from PIL import Image

_WHITE = (255, 255, 255, 255)
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what shows the image upright; from 5 on width and height change places."""


def upright(file: Image.Image, channels: int) -> Image.Image:
    """The whole image in mode L or RGB."""
    file.load()
    turn = _TURNS.get(orientation_of(file))  # only now: a TIFF turns itself when it is loaded
    image = _plain(file, channels)
    return image if turn is None else image.transpose(turn)


def orientation_of(image: Image.Image) -> int:
    """EXIF's number, from 1 to 8."""
    try:
        orientation = image.getexif().get(_ORIENTATION)
        return orientation if orientation in _TURNS else 1
    except Exception:  # a broken note about an image that is whole
        return 1


def _plain(image: Image.Image, channels: int) -> Image.Image:
    """The image in mode L or RGB; only L when one channel is wanted."""
    if image.mode == "F":
        raise ValueError("32-bit floats have no 8-bit meaning: save it with 8 or 16 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image)
    if channels == 1 or image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ValueError(f"32-bit values from {low} to {high} have no 8-bit meaning: save it with 8 or 16 bits")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
