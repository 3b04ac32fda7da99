"""Messages between loader and workers, and the sockets that they go through.

Each worker has a socket of its own, and so has the server that forks workers. What goes through it are pickles, and
with them the descriptors of new memory:

    number of bytes, number of descriptors     9 bytes, with which the descriptors come
    a pickle                                   of a task, or of a `Message`

Large arrays and tensors, wherever they are in what a worker hands over, lie in a block of shared memory that is used
again (`headrace.loader.workers.blocks`). Tokens and images are read into it directly; other buffers are copied there by
the worker. A pickle that is large all the same lies in the block, too, so that little goes through the socket.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import select
import socket
import struct
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

import torch

from headrace.datasets import Run
from headrace.datasets.dataset import Tell
from headrace.errors import WorkerError
from headrace.loader.spans import BatchSpan, ReadRows, SpanRows, room_for
from headrace.loader.workers.blocks import LARGE_BYTES, BlockTable, WorkerMemory

_HEAD: Final = struct.Struct("!QB")


def read_message(read: ReadRows, run: Run, span: BatchSpan, tell: Tell, memory: WorkerMemory) -> SpanRows:
    """Read the samples of a span into the memory of a message. Runs in a worker."""
    return read(run, span, room_for(run, span, memory.allocate), tell)


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
            left_s = None if until is None else max(0.0, until - monotonic())
            waiting = select.poll()
            waiting.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = waiting.poll(None if left_s is None else left_s * 1000)
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
