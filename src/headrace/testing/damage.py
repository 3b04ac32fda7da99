"""Damage files, and take the damage back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def other_byte(path: Path, at: int, value: int) -> Iterator[None]:
    """Set byte ``at`` of a file to ``value`` while the context lasts.

    The byte is changed in place, because a file system may wait for the disk if a file is truncated and written again.
    """
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([value]))
        try:
            yield
        finally:
            file.seek(at)
            file.write(before)


@contextlib.contextmanager
def restored(path: Path) -> Iterator[bytes]:
    """Return the content of a file as a context, at whose end the file has this content again."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)
