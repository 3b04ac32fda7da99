"""Turn whatever a codec raises into one error that names the part, and check sizes before anything is allocated.

gzip is inflated within a bound, since a few kilobytes may hold terabytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from typing import NoReturn

from headrace.errors import DecodeError, HeadraceError

MAX_PIXELS = 89_478_485
"""The size above which Pillow warns: a quarter of a gibibyte in 8-bit RGB."""
MAX_BYTES = 1 << 30


def reraise(part: str, error: Exception) -> NoReturn:
    """Raise an error of a part as a ``DecodeError`` of that part, unless it is already an error of Headrace.

    Codecs raise errors of any type (``SyntaxError`` for a broken PNG), so every error counts as a fault of the data.
    The exception is a lack of memory, which says nothing about the data, since sizes are checked before anything is
    allocated.
    """
    if isinstance(error, DecodeError) and error.part is None:
        raise DecodeError(part, error.reason) from error.__cause__
    if isinstance(error, HeadraceError) or is_out_of_memory(error):
        raise error
    raise DecodeError(part, f"cannot be decoded: {type(error).__name__}: {error}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out here. FFmpeg's error of this type, which has a number, means a broken header."""
    return isinstance(error, MemoryError) and not hasattr(error, "errno")


def check_bytes(size: int, max_bytes: int, what: str) -> None:
    """Refuse data that would take more bytes than allowed, before it is made.

    Raises:
        DecodeError: If ``size`` is above ``max_bytes``.
    """
    if size > max_bytes:
        raise DecodeError(
            None,
            f"{what} would take {size:,} bytes; allowed are {max_bytes:,} (max_bytes); raise it if the data is sound",
        )


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Refuse an image that has more pixels than allowed, before it is decoded.

    Raises:
        DecodeError: If it has more than ``max_pixels``.
    """
    if width * height > max_pixels:
        raise DecodeError(
            None,
            f"the image is {width:,} x {height:,} pixels; allowed are {max_pixels:,} in all (max_pixels); raise it if "
            "the data is sound",
        )


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Return the content of concatenated gzip members; zeros may follow them, as the gzip tool allows.

    Raises:
        DecodeError: If it is larger than ``max_bytes``, is not gzip, is cut short, or fails a checksum.
    """
    if not data:
        raise DecodeError(None, "is empty, not gzip")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            inflated = stream.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(None, f"is not sound gzip: {error}") from error
    if len(inflated) > max_bytes:
        raise DecodeError(
            None,
            f"inflates from {len(data):,} bytes to more than the {max_bytes:,} allowed (max_bytes); raise it if the "
            "data is sound",
        )
    return inflated
