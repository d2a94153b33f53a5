"""From an image file of any kind to uint8 pixels: one policy for training, held-out files and files from outside.

Content decides, not the name of the file. Every image becomes 8-bit grey or RGB before it is resized:

- palette, CMYK and YCbCr by Pillow's conversion; 1-bit is 0 or 255; grey fills all three channels;
- 16-bit grey is divided by 257, so that 65535 is 255; 32-bit integers too, as long as they fit 16 bits;
- alpha and transparent colours are laid over white: what was hidden stays hidden;
- the rotation that EXIF asks for is applied; of an animation or of several pages the first counts;
- a truncated file is an error, never half an image; so is one of more than 89 million pixels;
- a large JPEG is decoded at 1/2, 1/4 or 1/8 as long as that leaves twice the resolution of the sample: on 4000x3000
  photos 2.5 times faster, with a mean difference of 0.12 of 255 (CPU, Pillow 13).

Imports torch.
"""

from __future__ import annotations

import errno
import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from PIL import Image, features

from trainer4090.data.pipeline.batch_memory import new_samples
from trainer4090.data.pipeline.crops import Box, centred_box
from trainer4090.data.pipeline.jpeg import Header, header_of_plain, jpeg_content, planes_of_plain, turned
from trainer4090.data.pipeline.pillow_modes import orientation_of, upright
from trainer4090.item_format import ImageFormat

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(("AVIF",) if features.check("avif") else ()))
"""Of Pillow. No EPS, for one, which would start Ghostscript on a stranger's program."""
LARGEST_PIXELS = 89_478_485
"""From here on Pillow suspects a decompression bomb."""
SPARE = 2.0
"""Resolution that a JPEG is decoded at, over that of the sample."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class UnreadableImageError(ValueError):
    """A file is no image that can be used; the text says why."""


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _saying_why(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """`function` with an UnreadableImageError for all that is wrong with a file, the machine's errors as they are."""

    def saying_why(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        try:
            return function(*arguments, **named)
        except MemoryError:
            raise
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise
            raise UnreadableImageError(error.strerror or _first_line(error)) from error
        except Exception as error:  # decoders of foreign bytes raise SyntaxError, struct.error, IndexError, ...
            raise UnreadableImageError(_first_line(error)) from error

    return saying_why


class PlainPart(NamedTuple):
    """What the fast decoder makes of a JPEG; a tuple is made in a third of the time of a frozen record."""

    mode: str
    """Pillow's, L or RGB."""
    orientation: int
    edges: tuple[int, int, int, int]
    """Left, upper, right and lower of the part that is kept, when the image is upright."""


class ImageFile(NamedTuple):
    """An image file that was opened: a JPEG's content is here, another one is read when it is decoded."""

    source: str | bytes | Path | io.BytesIO
    content: bytes | None
    """Of a JPEG."""
    plain: PlainPart | None
    """None where Pillow has to look at it."""


def decode(source: str | bytes | Path | io.BytesIO, item_format: ImageFormat) -> torch.Tensor:
    """Pixels of an image file as a held-out sample, uint8 (channels, height, width).

    `source`: a path, or the content of a file as `io.BytesIO`.

    Raises:
        UnreadableImageError: it is no image, damaged, or of a kind that has no 8-bit meaning.
    """
    box_of, sample = held_out_box(item_format), new_samples(1, item_format)
    write_sample(opened(source, item_format, box_of), box_of, sample)
    return sample[0]


def held_out_box(item_format: ImageFormat) -> Callable[[int, int], Box]:
    """(width, height) of an image -> the part of it that becomes a sample when nothing is drawn."""
    size = (item_format.height, item_format.width)
    return partial(centred_box, size=size, shorter_side=item_format.shorter_side)


@_saying_why
def opened(
    source: str | bytes | Path | io.BytesIO, item_format: ImageFormat, box_of: Callable[[int, int], Box]
) -> ImageFile:
    """The file, with all that `write_sample` needs of a plain JPEG but its pixels.

    Raises:
        UnreadableImageError: there is no such file, or it may not be read.
    """
    content = jpeg_content(source)
    header = None if content is None else header_of_plain(content)
    if header is None:
        return ImageFile(source, content, None)
    size = (item_format.height, item_format.width)
    return ImageFile(source, content, _plain_part(header, item_format.channels, size, box_of))


def write_sample(file: ImageFile, box_of: Callable[[int, int], Box], sample: torch.Tensor) -> None:
    """Fill `sample`, uint8 (1, channels, height, width), with the part `box_of(width, height)` of an image, resized.

    Raises:
        UnreadableImageError: see `decode`.
    """
    channels, size = sample.shape[1], (sample.shape[2], sample.shape[3])
    planes = None if file.content is None or file.plain is None else _fast_planes(file.content, file.plain)
    if planes is None:
        planes = _by_pillow(file, channels, size, box_of)
    resized = sample if planes.shape[1] == channels else sample.new_empty((1, 1, *size))
    # A third of the time of Pillow's own resizing, and within 1 of 255 of it (x86-64 with AVX2, torch 2.14). It is what
    # `interpolate` calls, which has no place to write to.
    torch.ops.aten._upsample_bilinear2d_aa.out(planes, size, False, out=resized)
    if resized is not sample:
        sample.copy_(resized)  # grey fills all three channels


@_saying_why
def _by_pillow(
    file: ImageFile, channels: int, size: tuple[int, int], box_of: Callable[[int, int], Box]
) -> torch.Tensor:
    """The pixels in the box, upright, uint8 (1, 1 or 3, height, width)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of oddities a file, which would be a line a file and epoch
        source = file.source if file.content is None else io.BytesIO(file.content)
        with Image.open(source, formats=FORMATS) as image:
            return _planes(image, file.content, channels, size, box_of)


def _plain_part(
    header: Header, channels: int, size: tuple[int, int], box_of: Callable[[int, int], Box]
) -> PlainPart | None:
    """What the fast decoder has to do; None where Pillow has to, which decodes at a lower resolution too."""
    width, height = header.upright_size
    if width * height > LARGEST_PIXELS or header.mode not in ("L", "RGB"):
        return None
    box = box_of(width, height)
    across, down = _draft_size(header.width, header.height, box, size)
    if min(header.width // across, header.height // down) > 1:
        return None
    return PlainPart("L" if channels == 1 else header.mode, header.orientation, _whole_pixels(box, width, height))


def _fast_planes(content: bytes, plain: PlainPart) -> torch.Tensor | None:
    """The pixels of `plain`, uint8 (1, 1 or 3, height, width), as they were decoded; None where Pillow has to."""
    planes = planes_of_plain(content, plain.mode)
    if planes is None:
        return None
    left, upper, right, lower = plain.edges
    if plain.orientation != 1:
        return _view(turned(planes.permute(1, 2, 0).numpy(), plain.orientation)[upper:lower, left:right])
    # planes[None, :, upper:lower, left:right], at the cost of one operation instead of four.
    strides = planes.stride()
    shape = (1, planes.shape[0], lower - upper, right - left)
    return planes.as_strided(shape, (0, *strides), upper * strides[1] + left * strides[2])


def _view(pixels: np.ndarray) -> torch.Tensor:
    """(height, width) or (height, width, channels) as (1, channels, height, width)."""
    pixels = np.ascontiguousarray(pixels)  # torch knows no memory that is read backwards
    return torch.from_numpy(pixels).view(1, *pixels.shape[:2], -1).permute(0, 3, 1, 2)


def _planes(
    file: Image.Image,
    content: bytes | None,
    channels: int,
    size: tuple[int, int],
    box_of: Callable[[int, int], Box],
) -> torch.Tensor:
    """The pixels in the box, upright, uint8 (1, 1 or 3, height, width)."""
    header = Header(*file.size, file.mode, 1)
    if header.width * header.height > LARGEST_PIXELS:
        raise ValueError(f"{header.width}x{header.height} pixels are more than {LARGEST_PIXELS:,}")
    if content is None:
        image = upright(file, channels)
        return _view(np.asarray(image.crop(_whole_pixels(box_of(*image.size), *image.size))))
    header = replace(header, orientation=orientation_of(file))
    plain = _plain_part(header, channels, size, box_of) if file.format == "JPEG" else None
    planes = None if plain is None else _fast_planes(content, plain)
    if planes is not None:
        return planes
    width, height = header.upright_size
    box = box_of(width, height)
    file.draft("L" if channels == 1 else None, _draft_size(*file.size, box, size))  # type: ignore[arg-type]  # None leaves the mode as it is
    image = upright(file, channels)
    across, down = image.width / width, image.height / height
    box = box[0] * across, box[1] * down, box[2] * across, box[3] * down
    return _view(np.asarray(image.crop(_whole_pixels(box, *image.size))))


def _whole_pixels(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    left, upper = min(round(box[0]), width - 1), min(round(box[1]), height - 1)
    right, lower = min(round(box[2]), width), min(round(box[3]), height)
    return left, upper, max(right, left + 1), max(lower, upper + 1)


def _draft_size(width: int, height: int, box: Box, size: tuple[int, int]) -> tuple[int, int]:
    """Width and height that a JPEG of `width` x `height` has to be decoded at, at least."""
    factor = max(min((box[2] - box[0]) / size[1], (box[3] - box[1]) / size[0]) / SPARE, 1.0)
    return max(1, int(width / factor)), max(1, int(height / factor))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
