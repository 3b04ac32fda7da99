"""Memory of batches and images that is used again once nobody holds it.

Fresh memory of some hundred KiB costs more in page faults than the tokens that go into it, since the C library gives
it back to the system at every turn. Here arrays whose last tensor, view and reference is gone are handed out again.

Memory for images that is used again once nobody holds it.

A micro-batch of images is some MiB, which the C library takes from the system anew each time: to make its pages costs
as much as to copy it. In large pages, where the system has them, to decode into it takes a tenth less time besides.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import Fields, Sample

_SETS = 32
"""Sets remembered; a consumer that keeps more batches alive than these gets fresh memory for the rest."""

Arrays = tuple[NDArray[Any], ...]


def _references(arrays: Arrays) -> int:
    """The references to the most used of these arrays, those of this call among them."""
    return max(map(sys.getrefcount, arrays))


_NOBODY = _references((np.empty(1),))


class Buffers:
    """Sets of batch arrays, one array a field, (rows, ...) each. For one thread."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._sets: deque[tuple[int, Arrays]] = deque(maxlen=_SETS)

    def take(self, num_rows: int) -> Sample:
        """Uninitialised arrays that nobody else holds: used ones where there are any of this size, else fresh ones."""
        for rows, arrays in self._sets:
            if rows == num_rows and _references(arrays) == _NOBODY:
                return dict(zip(self._fields, arrays, strict=True))
        arrays = tuple(np.empty((num_rows, *shape), dtype=dtype) for shape, dtype in self._fields.values())
        # In front, so that the memory used last, which is still in the cache, is looked at first.
        self._sets.appendleft((num_rows, arrays))
        return dict(zip(self._fields, arrays, strict=True))


_SPARE = 2
"""Blocks kept that nobody holds: as many as a consumer lets go of between two readings."""

_LARGE_PAGE = 2 << 20

Block = NDArray[np.uint8]


def fresh(num_bytes: int) -> Block:
    """(num_bytes,) uint8, not initialised; in large pages where it is of several and the system has them."""
    if num_bytes < 2 * _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(num_bytes, np.uint8)
    whole = -(-num_bytes // _LARGE_PAGE) * _LARGE_PAGE
    mapped = mmap.mmap(-1, whole + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    block: Block = np.frombuffer(mapped, np.uint8)
    begin = -block.ctypes.data % _LARGE_PAGE
    # Not a view of an array: whoever looks who has a block must find itself.
    return np.frombuffer(mapped, np.uint8, num_bytes, begin)


def _block_references(blocks: list[Block]) -> list[int]:
    """The references to each block, that of the list and those of this call among them."""
    return [sys.getrefcount(block) for block in blocks]


_BLOCK_OF_NOBODY = _block_references([np.empty(1, np.uint8)])[0]


class Blocks:
    """Blocks of bytes, each for one holder at a time. Safe in threads."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lock = Lock()

    def take(self, num_bytes: int) -> Block:
        """(at least ``num_bytes``,) uint8, not initialised: no array or tensor has any of it."""
        with self._lock:
            found, spare = -1, 0
            for at, references in reversed(list(enumerate(_block_references(self._blocks)))):
                if references != _BLOCK_OF_NOBODY:
                    continue
                # The one used last, which is still in the cache, is looked at first.
                if found < 0 and num_bytes <= len(self._blocks[at]) <= 2 * num_bytes:
                    found = at
                elif spare < _SPARE:
                    spare += 1
                else:
                    del self._blocks[at]
                    found -= found > at
            block = fresh(num_bytes) if found < 0 else self._blocks.pop(found)
            self._blocks.append(block)
            return block
