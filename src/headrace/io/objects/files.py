"""`ObjectFile` reads an object as a file: from any byte on, in order, some blocks at a time."""

from __future__ import annotations

import io
from typing import Any, Final

from headrace.io.objects.lookups import BLOCK_BYTES, Objects, blocks_of
from headrace.io.remote import Status
from headrace.io.storage import Storage

FIRST_BYTES: Final = 1 << 18
"""The first GET after a jump; each that follows it in order is twice as long, up to `BLOCK_BYTES`."""


class ObjectFile(io.RawIOBase):
    """An object as a file for reading. Every answer must come from the object that is expected, see `Objects`.

    Read in order, [0, 16 MiB) takes GETs of 256 KiB, 512 KiB, 1, 2, 4 and 8 MiB, and the rest. Memory: one block.

    Args:
        url: the object.
        expected: what it is.
        storage: how the store is reached; None goes by the environment.
        end: the byte up to which it is read, as far as that is known; beyond it, GETs are short again.
        in_order: whether it is read in order. Otherwise each read is a GET of its own.
    """

    def __init__(
        self,
        url: str,
        expected: Status,
        storage: Storage | None = None,
        *,
        end: int | None = None,
        in_order: bool = True,
    ) -> None:
        self._url = url
        self._size = expected.size
        self._objects = Objects(storage)
        self._objects.expect(url, expected)
        self._end = self._size if end is None else min(end, self._size)
        self._in_order = in_order
        self._at = 0
        self._step = FIRST_BYTES
        self._first = 0
        self._data = memoryview(b"")
        """What was fetched, from the byte ``_first`` on."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte; this fetches nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read as many bytes as the buffer holds, or as there are.

        Raises:
            StoreError: the object cannot be read, or changed.
        """
        wanted = min(len(buffer), self._size - self._at)
        done = 0
        while done < wanted:
            if not self._first <= self._at < self._first + len(self._data):
                self._fetch(wanted - done)
            begin = self._at - self._first
            found = self._data[begin : begin + wanted - done]
            buffer[done : done + len(found)] = found
            self._at += len(found)
            done += len(found)
        return max(done, 0)

    def _fetch(self, wanted: int) -> None:
        length = wanted
        if self._in_order:
            is_next = len(self._data) > 0 and self._at == self._first + len(self._data)
            self._step = min(2 * self._step, BLOCK_BYTES) if is_next else FIRST_BYTES
            left = self._end - self._at
            length = min(self._step, left) if left > 0 else FIRST_BYTES
        data = self._objects.ranges(self._url, blocks_of(self._at, min(self._at + length, self._size)))
        self._first, self._data = self._at, memoryview(data[0] if len(data) == 1 else b"".join(data))
