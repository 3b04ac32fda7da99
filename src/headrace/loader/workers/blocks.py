"""Blocks: shared memory that workers read into, that batches are views of, and that is used again.

Making shared memory for each message and mapping it here costs the training loop several ms for some MiB, far more than
the message itself. So worker and loader both keep the blocks that a worker has made. Each message has one, and with the
task the loader says which: one that nothing here refers to any more, else a new one.

    task 0    block 0, which is new      the worker makes it and reads into it; it comes with the message
    task 2    0 is still in use: 1       the worker makes block 1
    task 4    block 0                    the worker reads into it; the message only says where in it the tensors lie

`WorkerMemory` is the side of the worker, `BlockTable` that of the loader.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from headrace.loader.memory import ALIGNED, SPARE, Block, Memory

LARGE_BYTES: Final = 64 << 10
"""Buffers of at least this size lie in blocks; smaller ones are copied faster through the socket."""

_MADV_POPULATE_WRITE: Final = 23


def shared_file(num_bytes: int) -> int:
    """Return the descriptor of a new file of zeros, without a name, so that nothing of it outlives its processes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("headrace")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, num_bytes)
    return descriptor


def mapped(descriptor: int, num_bytes: int) -> mmap.mmap:
    """Return the memory of a shared file, whose descriptor is closed."""
    try:
        if sys.version_info >= (3, 13):  # else each mapping has a descriptor of its own as long as it lives
            return mmap.mmap(descriptor, num_bytes, trackfd=False)
        return mmap.mmap(descriptor, num_bytes)
    finally:
        os.close(descriptor)


class Offer(NamedTuple):
    """What the loader says with a task: the number of the block for its message, and those that it has dropped."""

    block: int
    dropped: tuple[int, ...] = ()


class WorkerMemory:
    """The blocks that a worker has made, and the one of the message that it makes now.

    Attributes:
        descriptor: that of the block, if it was made for this message; None if the loader has it.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.descriptor: int | None = None
        self._number = self._end = 0
        self._usual_bytes = 0
        """The most bytes that a message needed so far."""

    def begin(self, offer: Offer) -> None:
        """Begin another message."""
        for number in offer.dropped:
            del self.blocks[number]
        self._number, self._end, self.descriptor = offer.block, 0, None

    @property
    def num_bytes(self) -> int:
        """The size of the block; 0 if there is none yet."""
        block = self.blocks.get(self._number)
        return 0 if block is None else block.nbytes

    def allocate(self, num_bytes: int) -> Block:
        """Return (num_bytes,) uint8: shared memory, or private memory for few bytes, which are copied anyway."""
        if num_bytes < LARGE_BYTES:
            return np.empty(num_bytes, np.uint8)
        if self._end + num_bytes > self.num_bytes:
            if self._end:  # it is copied when it is known how much the message needs
                return np.empty(num_bytes, np.uint8)
            self._make(num_bytes)
        return self._taken(num_bytes)

    def places(self, buffers: Sequence[memoryview]) -> list[slice]:
        """Return where in the block each buffer lies. Those that lie elsewhere are copied into it."""
        arrays = [np.frombuffer(one, np.uint8) for one in buffers]
        found = [self._begin(array) for array in arrays]
        missing = (array.nbytes for array, begin in zip(arrays, found, strict=True) if begin is None)
        needed = self._end + sum(map(_aligned, missing))
        self._usual_bytes = max(self._usual_bytes, needed)
        if needed > self.num_bytes:
            self._make(needed)
            found = [None] * len(arrays)
        for at, array in enumerate(arrays):
            if found[at] is None:
                found[at] = self._end
                self._taken(array.nbytes)[:] = array
        return [slice(begin, (begin or 0) + array.nbytes) for begin, array in zip(found, arrays, strict=True)]

    def _begin(self, array: Block) -> int | None:
        """Return where in the block an array begins; None if it lies elsewhere."""
        if self._number not in self.blocks:
            return None
        begin = array.ctypes.data - self.blocks[self._number].ctypes.data
        return begin if 0 <= begin <= self.num_bytes - array.nbytes else None

    def _taken(self, num_bytes: int) -> Block:
        begin, self._end = self._end, self._end + _aligned(num_bytes)
        return self.blocks[self._number][begin : begin + num_bytes]

    def _make(self, num_bytes: int) -> None:
        """Make the block anew, of at least ``num_bytes``, and of as many as the largest message needed."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        size = _aligned(max(num_bytes, self._usual_bytes))
        self.descriptor, self._end = shared_file(size), 0
        memory = mapped(os.dup(self.descriptor), size)
        # All pages at once take half the time that they take one by one at the first write. Older kernels refuse.
        with contextlib.suppress(OSError, ValueError):
            memory.madvise(_MADV_POPULATE_WRITE)
        self.blocks[self._number] = np.frombuffer(memory, np.uint8)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNED) * ALIGNED


class BlockTable:
    """The blocks of all workers, as the loader knows them. Task n goes to worker ``n % num_workers``."""

    def __init__(self, num_workers: int) -> None:
        self._blocks: list[dict[int, Memory]] = [{} for _ in range(num_workers)]
        self._offered: dict[int, tuple[int, Memory | None]] = {}
        self._numbers = count()

    def offer(self, task: int) -> Offer:
        """Return which block the message of a task has: one that is in no batch, or a new one.

        Of the other blocks that are in no batch, a few are kept.
        """
        blocks = self._blocks[task % len(self._blocks)]
        free = [number for number in reversed(blocks) if blocks[number].lent_to() is None]
        # The largest first, and of equal ones the block used last, which is still in the cache.
        free.sort(key=lambda number: blocks[number].num_bytes, reverse=True)
        dropped = tuple(free[1 + SPARE :])
        for number in dropped:
            del blocks[number]
        number = free[0] if free else next(self._numbers)
        self._offered[task] = number, blocks.pop(number, None)
        return Offer(number, dropped)

    def received(self, task: int, num_bytes: int, descriptors: Sequence[int]) -> Block:
        """Return (n,) uint8: the block of the message of a task, which has come. It is in use while this is.

        Args:
            task: the number of the task.
            num_bytes: the size of the block.
            descriptors: that of the block, if it was made for this message.
        """
        number, memory = self._offered.pop(task)
        for descriptor in descriptors:
            memory = Memory(mapped(descriptor, num_bytes), num_bytes)
        if memory is None:
            return np.empty(0, np.uint8)
        self._blocks[task % len(self._blocks)][number] = memory
        return memory.lend((memory.num_bytes,), np.dtype(np.uint8))
