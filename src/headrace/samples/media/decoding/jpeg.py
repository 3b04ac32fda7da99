"""JPEG through simplejpeg where its pixels are Pillow's to the bit; everything else is left to Pillow.

Both are libjpeg-turbo. With the slow DCT and the smooth upsampling (their defaults) colour to RGB and grey to grey or
RGB are equal in every byte, at full size and at 1/2, 1/4 and 1/8. Colour to grey differs (luma against Pillow's weights
of RGB), and so does CMYK (by one): those go to Pillow. simplejpeg takes two thirds of Pillow's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from headrace.errors import MissingExtraError
from headrace.samples.media.decoding.failing import check_pixels

JpegCodec = Literal["auto", "simplejpeg", "pillow"]
"""``auto``: simplejpeg where it is installed."""

_SOURCES = {"L": ("Gray",), "RGB": ("YCbCr", "Gray"), "RGBA": ("YCbCr", "Gray")}
_TARGETS = {"L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}
_BYTES = np.dtype(np.uint8)
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def load_simplejpeg(codec: JpegCodec) -> Any:
    """The module, or None where Pillow is to be used.

    Raises:
        MissingExtraError: it is asked for by name and not installed.
    """
    if codec == "pillow":
        return None
    try:
        import simplejpeg
    except ImportError as error:
        if codec == "simplejpeg":
            raise MissingExtraError("JPEG by simplejpeg needs it: pip install 'headrace[image]'") from error
        return None
    return simplejpeg


def scale_to_cover(width: int, height: int, size: tuple[int, int] | None) -> int:
    """The largest of 8, 4, 2, 1 that an image may be divided by, rounding up, and still cover ``size`` (h, w)."""
    if size is None:
        return 1
    for scale in (8, 4, 2):
        if min(height, width) >= scale and -(-height // scale) >= size[0] and -(-width // scale) >= size[1]:
            return scale
    return 1


def decode_jpeg(
    simplejpeg: Any,
    data: bytes,
    mode: str,
    size: tuple[int, int] | None,
    max_pixels: int,
    place: Callable[[tuple[int, ...], Any], np.ndarray[Any, Any]] | None = None,
) -> np.ndarray[Any, Any] | None:
    """Pixels (H, W) or (H, W, C) uint8, or None where Pillow must do it, or must say what is wrong.

    Args:
        simplejpeg: the module.
        data: the JPEG.
        mode: "L", "RGB" or "RGBA".
        size: see `scale_to_cover`.
        max_pixels: a larger image is refused.
        place: gives an array of a shape, (H, W, C), and a dtype to decode into; without it, the array is fresh.

    Raises:
        DecodeError: more than ``max_pixels``.
    """
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    check_pixels(width, height, max_pixels)
    if colorspace not in _SOURCES[mode]:
        return None
    scale = scale_to_cover(width, height, size)
    height, width = -(-height // scale), -(-width // scale)
    options: dict[str, Any] = {} if scale == 1 else {"min_height": height, "min_width": width, "min_factor": scale}
    shape = (height, width, _CHANNELS[mode])
    if place is not None:
        options["buffer"] = place(shape, _BYTES)
    try:
        pixels: np.ndarray[Any, Any] = simplejpeg.decode_jpeg(data, _TARGETS[mode], **options)
    except ValueError:
        # Strict: damage that libjpeg mends is an error here. Pillow mends it or refuses it, as everywhere else.
        return None
    if place is not None and pixels.shape != shape:
        return None
    return pixels[:, :, 0] if mode == "L" else pixels
