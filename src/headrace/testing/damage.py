"""Damage done to a file, and taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def other_byte(path: Path, at: int, value: int) -> Iterator[None]:
    """Within, byte ``at`` of the file is ``value``.

    It is changed in place: a file system may wait for the disk where a file is emptied and written anew.
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
