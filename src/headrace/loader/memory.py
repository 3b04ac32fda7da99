"""Memory of batches and images that is used again once nothing refers to it any more.

The C library returns memory of some hundred KiB to the system whenever it is freed. The page faults of fresh memory
then cost more than filling it with tokens, and for a micro-batch of images, of some MiB, as much as copying it. So
memory is lent to one array at a time, and again once that array is gone, with its last tensor, view and reference. A
weak reference says so, in any thread and without the interpreter lock. Where the system has large pages, decoding into
them takes a tenth less time.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from threading import Lock
from typing import Any, Final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

ALIGNED: Final = 64
"""Every array in a block begins at a multiple of so many bytes."""

Block = NDArray[np.uint8]
_BYTE: Final = np.dtype(np.uint8)


class _Allocated(np.ndarray[Any, Any]):
    """Memory of its own type: an array over it is the base of all views of that array.

    NumPy makes the owner of the memory the base of a view of a view, but does not look beyond a base of another type.
    """


def nobody() -> None:
    """Stand for a reference to an array that is gone."""


class Memory:
    """Memory that is lent to one array at a time. The array holds it, and each view or tensor holds the array.

    Attributes:
        num_bytes: its size.
        lent_to: returns the array that has it; None if that is gone, with all of its views and tensors.
    """

    __slots__ = ("_begin", "_owner", "lent_to", "num_bytes")

    def __init__(self, owner: _Allocated | mmap.mmap, num_bytes: int, begin: int = 0) -> None:
        self._owner = owner
        self._begin = begin
        self.num_bytes = num_bytes
        self.lent_to: Callable[[], NDArray[Any] | None] = nobody

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialised array over this memory, which nobody may have."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._owner, self._begin)
        self.lent_to = ref(array)
        return array


SPARE = 2
"""How many unused blocks are kept: as many as a consumer drops between two reads."""

_LARGE_PAGE = 2 << 20


def _fresh(num_bytes: int) -> Memory:
    """Return uninitialised memory; in large pages if it spans several and the system has them."""
    if num_bytes < 2 * _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return Memory(_Allocated(num_bytes, _BYTE), num_bytes)
    whole = -(-num_bytes // _LARGE_PAGE) * _LARGE_PAGE
    mapped = mmap.mmap(-1, whole + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel has no large pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return Memory(mapped, num_bytes, -np.frombuffer(mapped, np.uint8).ctypes.data % _LARGE_PAGE)


class Blocks:
    """Blocks of bytes, each for one user at a time. Safe for use in several threads."""

    def __init__(self) -> None:
        self._blocks: list[Memory] = []
        self._lock = Lock()

    def take(self, num_bytes: int) -> Block:
        """Return an uninitialised uint8 block of at least ``num_bytes`` that no array or tensor uses."""
        with self._lock:
            found, spare = -1, 0
            for at in reversed(range(len(self._blocks))):
                if self._blocks[at].lent_to() is not None:
                    continue
                # From the back, so that the block used last, which is still in the cache, is found first.
                if found < 0 and num_bytes <= self._blocks[at].num_bytes <= 2 * num_bytes:
                    found = at
                elif spare < SPARE:
                    spare += 1
                else:
                    del self._blocks[at]
                    found -= found > at
            memory = _fresh(num_bytes) if found < 0 else self._blocks.pop(found)
            self._blocks.append(memory)
            return memory.lend((memory.num_bytes,), _BYTE)
