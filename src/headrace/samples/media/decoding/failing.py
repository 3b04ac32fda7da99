"""Whatever a codec raises, as one error that names the part."""

from __future__ import annotations

from typing import NoReturn

from headrace.errors import DecodeError, HeadraceError


def reraise(part: str, error: Exception) -> NoReturn:
    """Raise the error that a part met with, as a ``DecodeError`` of that part where it is not one of ours already.

    Codecs raise what they like (``SyntaxError`` for a broken PNG), so all is taken for a fault of the data but a lack
    of memory, which says nothing of the data: sizes are checked before anything is allocated.
    """
    if isinstance(error, DecodeError) and error.part is None:
        raise DecodeError(part, error.reason) from error.__cause__
    if isinstance(error, HeadraceError) or is_out_of_memory(error):
        raise error
    raise DecodeError(part, f"cannot be decoded: {type(error).__name__}: {error}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out here; FFmpeg's error of this kind, which has a number, is for sizes in a broken header."""
    return isinstance(error, MemoryError) and not hasattr(error, "errno")


def check_bytes(size: int, max_bytes: int, what: str) -> None:
    """Refuse what would be larger than allowed, before it is made.

    Raises:
        DecodeError: ``size`` is beyond ``max_bytes``.
    """
    if size > max_bytes:
        raise DecodeError(
            None,
            f"{what} would take {size:,} bytes; allowed are {max_bytes:,} (max_bytes), raise it if the data is sound",
        )


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Refuse an image that is larger than allowed, before it is decoded.

    Raises:
        DecodeError: more than ``max_pixels``.
    """
    if width * height > max_pixels:
        raise DecodeError(
            None,
            f"the image is {width:,} x {height:,} pixels; allowed are {max_pixels:,} in all (max_pixels), raise it if "
            "the data is sound",
        )
