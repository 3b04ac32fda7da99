"""`ObjectFile` reads an object as a file: from any byte on, in order, some blocks at a time.

`fetched` reads parts of many objects in a row, many of them at the same time.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from headrace.io.objects.client import FetchReply
from headrace.io.objects.lookups import BLOCK_BYTES, Objects, blocks_of
from headrace.io.remote import Status
from headrace.io.storage import Storage

FIRST_BYTES: Final = 1 << 18
"""The first GET after a jump; each that follows it in order is twice as long, up to `BLOCK_BYTES`."""


AHEAD: Final = 32
"""The most parts of objects that `fetched` has under way, or has fetched and not yielded."""

AHEAD_BYTES: Final = 64 << 20
"""The same in bytes."""


class ObjectPart(NamedTuple):
    """Some bytes of an object, at least one and at most `BLOCK_BYTES`."""

    url: str
    expected: Status
    begin: int
    end: int


def parts_of(url: str, expected: Status) -> Iterator[ObjectPart]:
    """Yield the bytes of an object in parts of `BLOCK_BYTES`."""
    for block in blocks_of(0, expected.size):
        yield ObjectPart(url, expected, *block)


def fetched(parts: Iterable[ObjectPart], storage: Storage | None) -> Iterator[Any]:
    """Yield the bytes of parts in their order, each by a GET of its own, up to `AHEAD` of them at the same time.

    Raises:
        StoreError: an object cannot be read, or is not what is expected.
    """
    objects = Objects(storage)
    ahead: deque[tuple[ObjectPart, Future[FetchReply]]] = deque()
    for part in parts:
        num_bytes = sum(one.end - one.begin for one, _ in ahead) + part.end - part.begin
        while ahead and (len(ahead) >= AHEAD or num_bytes > AHEAD_BYTES):
            first, future = ahead.popleft()
            num_bytes -= first.end - first.begin
            yield objects.finish(first.url, future).data[0]
        objects.expect(part.url, part.expected)
        ahead.append((part, objects.begin_ranges(part.url, [(part.begin, part.end)])))
        objects.forget()
    for last, future in ahead:
        yield objects.finish(last.url, future).data[0]


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
