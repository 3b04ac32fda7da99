"""Memory of batches and images that is used again once nothing refers to it any more.

The C library returns memory of some hundred KiB to the system whenever it is freed. The page faults of fresh memory
then cost more than filling it with tokens, and for a micro-batch of images, of some MiB, as much as copying it. So
arrays are handed out again once their last tensor, view and reference is gone. Where the system has large pages,
decoding into them takes a tenth less time.
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
"""Sets of arrays kept; a consumer that keeps more batches alive than these gets fresh memory for the rest."""

Arrays = tuple[NDArray[Any], ...]


def _references(arrays: Arrays) -> int:
    """Return the number of references to the most referenced of these arrays, including those of this call."""
    return max(map(sys.getrefcount, arrays))


_NOBODY = _references((np.empty(1),))


class Buffers:
    """Sets of batch arrays, one (rows, ...) array for each field. Not safe for use in several threads."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._sets: deque[tuple[int, Arrays]] = deque(maxlen=_SETS)

    def take(self, num_rows: int) -> Sample:
        """Return uninitialised arrays that nothing else refers to: used ones of this size if there are any."""
        for rows, arrays in self._sets:
            if rows == num_rows and _references(arrays) == _NOBODY:
                return dict(zip(self._fields, arrays, strict=True))
        arrays = tuple(np.empty((num_rows, *shape), dtype=dtype) for shape, dtype in self._fields.values())
        # At the front, so that the memory used last, which is still in the cache, is found first.
        self._sets.appendleft((num_rows, arrays))
        return dict(zip(self._fields, arrays, strict=True))


SPARE = 2
"""How many unused blocks are kept: as many as a consumer drops between two reads."""

_LARGE_PAGE = 2 << 20

Block = NDArray[np.uint8]


def fresh(num_bytes: int) -> Block:
    """Return (num_bytes,) uint8, uninitialised; in large pages if it spans several and the system has them."""
    if num_bytes < 2 * _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(num_bytes, np.uint8)
    whole = -(-num_bytes // _LARGE_PAGE) * _LARGE_PAGE
    mapped = mmap.mmap(-1, whole + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel has no large pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    block: Block = np.frombuffer(mapped, np.uint8)
    begin = -block.ctypes.data % _LARGE_PAGE
    # Made from the map, not as a view of ``block``: references to the returned array itself are counted later.
    return np.frombuffer(mapped, np.uint8, num_bytes, begin)


def block_references(blocks: list[Block]) -> list[int]:
    """Return the number of references to each block, including that of the list and those of this call."""
    return [sys.getrefcount(block) for block in blocks]


BLOCK_OF_NOBODY = block_references([np.empty(1, np.uint8)])[0]
"""The references to a block that only the list given to `block_references` refers to."""


class Blocks:
    """Blocks of bytes, each for one user at a time. Safe for use in several threads."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lock = Lock()

    def take(self, num_bytes: int) -> Block:
        """Return an uninitialised uint8 block of at least ``num_bytes`` that no array or tensor uses."""
        with self._lock:
            found, spare = -1, 0
            for at, references in reversed(list(enumerate(block_references(self._blocks)))):
                if references != BLOCK_OF_NOBODY:
                    continue
                # From the back, so that the block used last, which is still in the cache, is found first.
                if found < 0 and num_bytes <= len(self._blocks[at]) <= 2 * num_bytes:
                    found = at
                elif spare < SPARE:
                    spare += 1
                else:
                    del self._blocks[at]
                    found -= found > at
            block = fresh(num_bytes) if found < 0 else self._blocks.pop(found)
            self._blocks.append(block)
            return block
