"""Blocks: shared memory that workers read into, that batches are views of, and that is used again.

Making shared memory for each message and mapping it here costs the training loop several ms for some MiB, far more than
the message itself. So worker and loader both keep the blocks that a worker has made. With each task the loader offers
one that nothing here refers to any more:

    task 0    nothing to offer       the worker makes block 0 and reads into it; block 0 comes with the message
    task 2    0 is still in use      the worker makes block 1
    task 4    0 is offered           the worker reads into it; the message only says where in block 0 the tensors lie

A block is used by one message at a time. `MessageMemory` is the side of the worker, `BlockTable` that of the loader.
Both begin anew with each stream of tasks, since the messages of a stream that was left may never be received.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from math import prod
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.loader.memory import ALIGNED, SPARE, Block, Memory

LARGE_BYTES: Final = 64 << 10
"""Arrays of at least this size lie in blocks; smaller ones are copied faster through the socket."""

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
    """What the loader says with a task: the number of a block that is free, and those that it has dropped."""

    block: int | None = None
    dropped: tuple[int, ...] = ()


class BlockView(NamedTuple):
    """Where a tensor lies: it begins at byte ``begin`` of a block, and is contiguous."""

    block: int
    begin: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class WorkerBlocks:
    """The blocks that a worker has made for a stream of tasks."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.usual_bytes = 0
        """The most bytes that a message had so far."""
        self._next = 0

    def make(self, num_bytes: int) -> tuple[int, int]:
        """Make a block of at least ``num_bytes``, and of as many as the largest message had.

        Returns its number, and its descriptor, which the caller closes.
        """
        number, self._next = self._next, self._next + 1
        size = max(num_bytes, self.usual_bytes)
        descriptor = shared_file(size)
        memory = mapped(os.dup(descriptor), size)
        # All pages at once take half the time that they take one by one at the first write. Older kernels refuse.
        with contextlib.suppress(OSError, ValueError):
            memory.madvise(_MADV_POPULATE_WRITE)
        self.blocks[number] = np.frombuffer(memory, np.uint8)
        return number, descriptor


class MessageMemory:
    """Memory of one message, in the block that was offered, and in new ones where that is too small."""

    def __init__(self, kept: WorkerBlocks | None = None, offer: Offer | None = None) -> None:
        self._kept = WorkerBlocks() if kept is None else kept
        offer = offer or Offer()
        for number in offer.dropped:
            del self._kept.blocks[number]
        self._open = offer.block
        self._end = 0
        self._num_bytes = 0
        self._used: list[int] = []
        self.made: dict[int, tuple[int, int]] = {}
        """The blocks that were made for this message: the descriptor of each, and its size."""
        self.dropped: tuple[int, ...] = ()
        """The block that was offered, if it was too small."""

    def allocate(self, num_bytes: int) -> Block:
        """Return (num_bytes,) uint8: shared memory, or private memory for few bytes, which are copied anyway."""
        if num_bytes < LARGE_BYTES:
            return np.empty(num_bytes, np.uint8)
        number, begin = self._room(num_bytes)
        return self._kept.blocks[number][begin : begin + num_bytes]

    def view(self, tensor: torch.Tensor) -> BlockView:
        """Return where a tensor lies in the blocks of this message; one that lies elsewhere is copied into them."""
        for number in self._used:
            block = self._kept.blocks[number]
            begin = tensor.data_ptr() - block.ctypes.data
            if begin >= 0 and begin + tensor.nbytes <= block.nbytes and tensor.is_contiguous():
                return BlockView(number, begin, tensor.dtype, tuple(tensor.shape))
        number, begin = self._room(tensor.nbytes)
        found = BlockView(number, begin, tensor.dtype, tuple(tensor.shape))
        viewed(self._kept.blocks[number], found).copy_(tensor)
        return found

    def _room(self, num_bytes: int) -> tuple[int, int]:
        """Return a block and where in it there is room for so many bytes."""
        self._num_bytes += -(-num_bytes // ALIGNED) * ALIGNED
        self._kept.usual_bytes = max(self._kept.usual_bytes, self._num_bytes)
        number, begin = self._open, self._end
        if number is None or begin + num_bytes > self._kept.blocks[number].nbytes:
            if number is not None and not self._used:
                del self._kept.blocks[number]
                self.dropped = (number,)
            number, descriptor = self._kept.make(num_bytes)
            self.made[number] = descriptor, self._kept.blocks[number].nbytes
            begin = 0
        if number not in self._used:
            self._used.append(number)
        self._open, self._end = number, -(-(begin + num_bytes) // ALIGNED) * ALIGNED
        return number, begin


def viewed(block: NDArray[np.uint8], view: BlockView) -> torch.Tensor:
    """Return the tensor at a place in a block. It refers to the array itself, as do all views of it."""
    count = prod(view.shape)
    return torch.frombuffer(block, dtype=view.dtype, count=count, offset=view.begin).view(view.shape)


class BlockTable:
    """The blocks of all workers, as the loader knows them, and which of them are in use."""

    def __init__(self, num_workers: int) -> None:
        self._blocks: list[dict[int, Memory]] = [{} for _ in range(num_workers)]
        self._offered: dict[int, int] = {}

    def offer(self, task: int) -> Offer:
        """Return which block the message of a task may use: one that is with no other task and in no batch.

        Task n goes to worker ``n % num_workers``. Of the other free blocks, a few are kept.
        """
        blocks = self._blocks[task % len(self._blocks)]
        free = self._free(task)
        # The largest first, and of equal ones the block used last, which is still in the cache.
        free.sort(key=lambda number: blocks[number].num_bytes, reverse=True)
        dropped = tuple(free[1 + SPARE :])
        for number in dropped:
            del blocks[number]
        if not free:
            return Offer()
        self._offered[task] = free[0]
        return Offer(free[0], dropped)

    def _free(self, task: int) -> list[int]:
        blocks = self._blocks[task % len(self._blocks)]
        taken = {number for other, number in self._offered.items() if (other - task) % len(self._blocks) == 0}
        free = [number for number, block in blocks.items() if number not in taken and block.lent_to() is None]
        return free[::-1]

    def received(self, task: int, made: dict[int, tuple[int, int]], dropped: tuple[int, ...]) -> None:
        """Note that the message of a task has come, with the blocks that were made for it, see `MessageMemory`."""
        blocks = self._blocks[task % len(self._blocks)]
        number = self._offered.pop(task, None)
        if number is not None and number not in dropped:
            # At the end, as the block used last.
            blocks[number] = blocks.pop(number)
        for number in dropped:
            del blocks[number]
        for number, (descriptor, num_bytes) in made.items():
            blocks[number] = Memory(mapped(descriptor, num_bytes), num_bytes)

    def tensor(self, task: int, view: BlockView) -> torch.Tensor:
        """Return the tensor at a place in a block of the worker that has read a task. The block is in use meanwhile."""
        block = self._blocks[task % len(self._blocks)][view.block]
        # One array for all tensors of a message, which is how `offer` knows that the block is in use.
        array = block.lent_to()
        return viewed(block.lend((block.num_bytes,), np.dtype(np.uint8)) if array is None else array, view)

    def clear(self) -> None:
        """Forget all blocks, as a new stream begins. Batches keep those that they are in."""
        for blocks in self._blocks:
            blocks.clear()
        self._offered.clear()
