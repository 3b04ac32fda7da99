"""gzip, bounded: a few kilobytes may inflate to terabytes."""

from __future__ import annotations

import gzip
import io
import zlib

from headrace.errors import DecodeError


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """What gzip members, one after another, hold; zeros may follow them, as the tool allows.

    Raises:
        DecodeError: more than ``max_bytes``; not gzip, cut short, or a checksum does not hold.
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
