"""Decoding: every kind of file gives the stated pixels, or an error that says why it gives none."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import image_files as files
import numpy as np
import pytest
import torch
from PIL import Image

from trainer4090.data.pipeline import decode as module
from trainer4090.data.pipeline.decode import UnreadableImageError, decode
from trainer4090.item_format import ImageFormat

COLOUR = ImageFormat(3, files.SIDE, files.SIDE, files.SIDE, (0.0,), (1.0,), ())
GREY = replace(COLOUR, channels=1)
PNG, flat = files.content, files.flat
KEYED = files.content(flat("RGB", (1, 2, 3)), transparency=(1, 2, 3))

PIXELS = {
    # file: (its content, RGB, grey)
    "grey": (PNG(flat("L", 128)), (128, 128, 128), 128),
    "palette": (PNG(files.palette()), (10, 20, 30), 18),
    "cmyk-tiff": (PNG(flat("CMYK", (0, 255, 255, 0)), "TIFF"), (255, 0, 0), 76),
    "cmyk-jpeg": (PNG(flat("CMYK", (0, 255, 255, 0)), "JPEG", quality=100), (255, 0, 0), 76),
    "grey-alpha-hidden": (PNG(flat("LA", (50, 0))), (255, 255, 255), 255),
    "grey-alpha-shown": (PNG(flat("LA", (50, 255))), (50, 50, 50), 50),
    "alpha-hidden": (PNG(flat("RGBA", (255, 0, 0, 0))), (255, 255, 255), 255),
    "alpha-half": (PNG(flat("RGBA", (255, 0, 0, 128))), (255, 127, 127), 165),
    "alpha-shown": (PNG(flat("RGBA", (255, 0, 0, 255))), (255, 0, 0), 76),
    "palette-transparent": (PNG(files.palette(transparent=0)), (255, 255, 255), 255),
    "palette-other-transparent": (PNG(files.palette(transparent=1)), (10, 20, 30), 18),
    "colour-transparent": (KEYED, (255, 255, 255), 255),
    "16-bit": (PNG(files.sixteen_bits(30000)), (117, 117, 117), 117),
    "16-bit-white": (PNG(files.sixteen_bits(65535)), (255, 255, 255), 255),
    "16-bit-tiff": (PNG(files.sixteen_bits(30000), "TIFF"), (117, 117, 117), 117),
    "16-bit-pgm": (b"P5 8 8 65535\n" + struct.pack(">64H", *[30000] * 64), (117, 117, 117), 117),
    "32-bit-that-fits": (PNG(files.sixteen_bits(30000, "int32"), "TIFF"), (117, 117, 117), 117),
    "1-bit-white": (PNG(flat("1", 1)), (255, 255, 255), 255),
    "1-bit-black": (PNG(flat("1", 0)), (0, 0, 0), 0),
    "animation": (files.animation(), (255, 0, 0), 76),
    "webp": (PNG(flat("RGB", (255, 0, 0)), "WEBP", lossless=True), (255, 0, 0), 76),
    "bmp": (PNG(flat("RGB", (255, 0, 0)), "BMP"), (255, 0, 0), 76),
}


@pytest.mark.parametrize(("content", "colour", "grey"), PIXELS.values(), ids=PIXELS)
def test_stated_pixels(content: bytes, colour: tuple[int, ...], grey: int) -> None:
    """B46: three channels or one, never saturated, never what transparency hides; JPEG may be off by one."""
    off = 1 if content[:2] == b"\xff\xd8" else 0
    for wanted, item_format in ((colour, COLOUR), ((grey,), GREY)):
        pixels = decode(io.BytesIO(content), item_format)
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (len(wanted), files.SIDE, files.SIDE)
        assert (pixels.flatten(1).T.int() - torch.tensor(wanted)).abs().max() <= off, pixels[:, 0, 0]


RED, BLUE = (255, 0, 0), (0, 0, 255)
UPRIGHT = {1: (RED, BLUE), 2: (BLUE, RED), 3: (BLUE, RED), 4: (RED, BLUE)}
"""Orientation -> left and right of an image that is stored with red on the left."""
TURNED = {5: (RED, BLUE), 6: (RED, BLUE), 7: (BLUE, RED), 8: (BLUE, RED)}
"""Orientation -> top and bottom."""


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [*UPRIGHT, *TURNED])
def test_exif_rotation_is_applied_once(kind: str, orientation: int) -> None:
    content = files.content(files.halves(32, 16), kind, exif=files.exif(orientation), quality=95)
    turned = orientation in TURNED
    height, width = (32, 16) if turned else (16, 32)
    pixels = decode(io.BytesIO(content), replace(COLOUR, height=height, width=width, shorter_side=None)).int()
    first, last = {**UPRIGHT, **TURNED}[orientation]
    corners = ((2, 2, first), (-3, -3, last), (2, -3, first if turned else last))
    for row, column, wanted in corners:
        assert (pixels[:, row, column] - torch.tensor(wanted)).abs().max() < 12, (row, column)


def noise(kind: str, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    return files.content(Image.fromarray(pixels), kind, **options)


@pytest.mark.parametrize("kept", [0.95, 0.5, 0.01])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_a_truncated_file_is_an_error(kind: str, kept: float) -> None:
    content = noise(kind)
    assert decode(io.BytesIO(content), COLOUR).shape == (3, files.SIDE, files.SIDE)
    with pytest.raises(UnreadableImageError, match=r"."):
        decode(io.BytesIO(content[: int(len(content) * kept)]), COLOUR)


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 30,000 x 30,000 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


REFUSED = {
    "empty": (b"", "cannot identify image file"),
    "text": (b"no image at all", "cannot identify image file"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "cannot identify image file"),
    "bomb": (bomb(), "10000x10000 pixels are more than 89,478,485"),
    "float": (files.content(files.sixteen_bits(1, "float32"), "TIFF"), "32-bit floats have no 8-bit meaning"),
    "32-bit": (files.content(files.sixteen_bits(70000, "int32"), "TIFF"), "32-bit values from 70000 to 70000"),
    "negative": (files.content(files.sixteen_bits(-1, "int32"), "TIFF"), "32-bit values from -1 to -1"),
}


@pytest.mark.parametrize(("content", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_image_says_why(content: bytes, text: str) -> None:
    with pytest.raises(UnreadableImageError, match=text) as caught:
        decode(io.BytesIO(content), COLOUR)
    assert "\n" not in str(caught.value)


def test_paths_and_contents_give_the_same(tmp_path: Path) -> None:
    path = files.write(tmp_path / "猫 é.png")
    wanted = decode(io.BytesIO(path.read_bytes()), COLOUR)
    for source in (path, str(path), str(path).encode()):
        assert torch.equal(decode(source, COLOUR), wanted)
    with pytest.raises(UnreadableImageError, match="No such file or directory"):
        decode(tmp_path / "none.png", COLOUR)


def gradient(width: int, height: int) -> Image.Image:
    """Red grows to the right, green downwards."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)
    pixels[..., 1] = np.linspace(0, 255, height)[:, None]
    return Image.fromarray(pixels)


def by_torchvision(image: Image.Image, size: tuple[int, int], shorter_side: int) -> torch.Tensor:
    """The usual evaluation transform, as torchvision has it."""
    from torchvision.transforms import v2

    transform = v2.Compose([v2.PILToTensor(), v2.Resize(shorter_side, antialias=True), v2.CenterCrop(size)])
    return transform(image)


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (640, 640), (100, 80)])
def test_resize_and_crop_are_the_usual_ones(width: int, height: int) -> None:
    image = gradient(width, height)
    ours = decode(io.BytesIO(files.content(image)), replace(COLOUR, height=224, width=224, shorter_side=256))
    assert (ours.int() - by_torchvision(image, (224, 224), 256).int()).abs().max() <= 2


def test_stretching_keeps_everything() -> None:
    pixels = decode(
        io.BytesIO(files.content(gradient(90, 30))), replace(COLOUR, height=20, width=20, shorter_side=None)
    )
    assert pixels[0, 0, 0] < 10 and pixels[0, 0, -1] > 245 and pixels[1, -1, 0] > 245


def test_a_large_jpeg_is_decoded_at_a_lower_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is within a few levels of the whole resolution, and a rotated one is treated alike."""
    item_format = replace(COLOUR, height=64, width=64, shorter_side=72)
    content = files.content(gradient(1200, 900), "JPEG", quality=95, exif=files.exif(6))
    sizes = []
    whole_pixels = module._whole_pixels

    def noting(box: tuple[float, float, float, float], width: int, height: int) -> tuple[int, int, int, int]:
        sizes.append((width, height))
        return whole_pixels(box, width, height)

    monkeypatch.setattr(module, "_whole_pixels", noting)
    reduced = decode(io.BytesIO(content), item_format)
    monkeypatch.setattr(module, "SPARE", 1000.0)
    whole = decode(io.BytesIO(content), item_format)
    assert sizes == [(225, 300), (900, 1200)]
    assert (reduced.int() - whole.int()).abs().max() <= 4
