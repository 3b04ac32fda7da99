"""Messages between loader and workers, the sockets that they go through, and the memory that large buffers lie in.

Each worker has a socket of its own, and so has the server that forks workers. What goes through it are pickles, and
with them the descriptors of new memory:

    number of bytes, number of descriptors     9 bytes, with which the descriptors come
    a pickle                                   of a task, or of a `Message`

Large arrays and tensors, wherever they are in what a worker hands over, lie in a block of shared memory. Tokens and
images are read into it directly; other buffers are copied there by the worker. A pickle that is large all the same lies
in the block, too, so that little goes through the socket.

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
import copyreg
import io
import mmap
import os
import pickle
import select
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from headrace.datasets import Run
from headrace.datasets.dataset import Tell
from headrace.errors import WorkerError
from headrace.loader.memory import ALIGNED, SPARE, Block, Memory
from headrace.loader.spans import BatchSpan, Ids, ReadRows, SpanRows, room_for

_HEAD: Final = struct.Struct("!QB")
_MOST_MS: Final = 1 << 30

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


def read_message(read: ReadRows, run: Run, ids: Ids, span: BatchSpan, tell: Tell, memory: WorkerMemory) -> SpanRows:
    """Read the samples of a span into the memory of a message. Runs in a worker."""
    return read(run, span, room_for(run, span, memory.allocate, ids), tell)


class Message(NamedTuple):
    """What a worker sends for a task.

    Attributes:
        number: the number of the task.
        pickled: what the worker made, pickled by `dumped`; None if this lies in the block, after all buffers.
        places: where in the block the buffers lie.
        num_bytes: the size of the block, whose descriptor comes beside if the loader does not have it.
    """

    number: int
    pickled: bytes | None
    places: list[slice]
    num_bytes: int

    @classmethod
    def of(cls, number: int, made: Any, memory: WorkerMemory) -> tuple[Message, list[int]]:
        """Return the message with what a worker made, and the descriptors that go with it."""
        buffers: list[memoryview] = []
        pickled: bytes | None = dumped(made, buffers)
        if pickled is not None and len(pickled) >= LARGE_BYTES:
            buffers.append(memoryview(pickled))
            pickled = None
        places = memory.places(buffers)
        descriptors = [] if memory.descriptor is None else [memory.descriptor]
        return cls(number, pickled, places, memory.num_bytes), descriptors

    def read(self, table: BlockTable, descriptors: Sequence[int]) -> Any:
        """Return what the worker made, with arrays and tensors that are views of the block."""
        block = table.received(self.number, self.num_bytes, descriptors)
        buffers = [block[place] for place in self.places]
        pickled = buffers.pop().data if self.pickled is None else self.pickled
        return pickle.loads(pickled, buffers=buffers)


def dumped(made: Any, buffers: list[memoryview] | None = None) -> bytes:
    """Pickle something for another process, tensors as their bytes. Large buffers are appended to a list, if any."""

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if buffers is None or raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=is_small)
    pickler.dispatch_table = {**copyreg.dispatch_table, torch.Tensor: _reduced}
    pickler.dump(made)
    return stream.getvalue()


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    if (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized)
    ):
        try:
            flat = tensor.contiguous().view(-1).view(torch.uint8)
            return _tensor, (flat.numpy(), tensor.dtype, tuple(tensor.shape))
        except (TypeError, RuntimeError):  # of its kind of tensors there are no views
            pass
    found: tuple[Any, ...] = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
    return found


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).view(shape)


class Channel:
    """One end of a worker's socket. The loader's end never blocks: what cannot be sent yet is sent while it waits."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unsent = bytearray()
        self._head = b""
        self._body = bytearray()
        self._num_received = 0
        self._descriptors: list[int] = []

    def close(self) -> None:
        """Close this end, and descriptors of a message that has come only in part."""
        self._socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message and wait until it is sent.

        Raises:
            ConnectionError: the other process has ended.
        """
        whole = _HEAD.pack(len(data), len(descriptors)) + data
        num_sent = socket.send_fds(self._socket, [whole], descriptors)
        self._socket.sendall(memoryview(whole)[num_sent:])

    def post(self, data: bytes) -> None:
        """Send a message as far as the socket takes it, and the rest while `receive` waits."""
        self._unsent += _HEAD.pack(len(data), 0) + data
        self._flush()

    def _flush(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except ConnectionError:  # the other process has ended, which `receive` finds
            self._unsent.clear()

    def receive(self, limit_s: float | None = None) -> tuple[bytearray, list[int]] | None:
        """Return the next message and its descriptors; None if it has not come whole within the limit.

        Raises:
            EOFError: the other process has ended, perhaps in the middle of a message.
            WorkerError: this process has no descriptors left.
        """
        until = None if limit_s is None else monotonic() + limit_s
        while not self._is_whole():
            left_ms = None if until is None else min(max(0.0, 1000 * (until - monotonic())), _MOST_MS)
            waiting = select.poll()
            waiting.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = waiting.poll(left_ms)
            if not ready:
                return None
            if ready[0][1] & select.POLLOUT:
                self._flush()
            if ready[0][1] & ~select.POLLOUT:
                self._take()
        found = self._body, self._descriptors
        self._head, self._body, self._num_received, self._descriptors = b"", bytearray(), 0, []
        return found

    def _is_whole(self) -> bool:
        return len(self._head) == _HEAD.size and self._num_received == len(self._body)

    def _take(self) -> None:
        """Take what has come of the next message."""
        try:
            if len(self._head) < _HEAD.size:
                wanted = _HEAD.size - len(self._head)
                data, descriptors, _, _ = socket.recv_fds(self._socket, wanted, 1)
                self._head += data
                self._descriptors += descriptors
                num_bytes = len(data)
                if len(self._head) == _HEAD.size:
                    size, num_descriptors = _HEAD.unpack(self._head)
                    self._body = bytearray(size)
                    if num_descriptors != len(self._descriptors):
                        raise WorkerError(
                            "nothing can be received from worker processes: this process has too many open files;"
                            " raise its limit (ulimit -n)"
                        )
            else:
                num_bytes = self._socket.recv_into(memoryview(self._body)[self._num_received :])
                self._num_received += num_bytes
        except ConnectionError:
            num_bytes = 0
        if not num_bytes:
            raise EOFError("the other process has ended")
