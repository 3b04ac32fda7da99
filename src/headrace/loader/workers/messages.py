"""Messages between loader and workers, and the sockets that they go through.

Each worker has a socket of its own. Worker and loader send it pickles, and with them the descriptors of new memory:

    number of bytes, number of descriptors     9 bytes, with which the descriptors come
    a pickle                                   of a task, or of a `Message`

Large tensors, wherever they are in what a worker hands over, lie in blocks of shared memory that are used again
(`headrace.loader.workers.blocks`). Tokens and images are read into them directly; other tensors are copied there by the
worker. A pickle that is large all the same lies in a block, too, so that little goes through the socket.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import select
import socket
import struct
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from headrace.datasets import Run
from headrace.datasets.dataset import Tell
from headrace.errors import WorkerError
from headrace.loader.spans import BatchSpan, ReadRows, SpanRows, room_for
from headrace.loader.workers.blocks import LARGE_BYTES, BlockTable, BlockView, MessageMemory

_HEAD: Final = struct.Struct("!QB")
_MOST_DESCRIPTORS: Final = 250
"""The system takes no more at a time. A message makes fewer: each block is as large as all before it together."""


def read_message(read: ReadRows, run: Run, span: BatchSpan, tell: Tell, memory: MessageMemory) -> SpanRows:
    """Read the samples of a span into the memory of a message. Runs in a worker."""
    return read(run, span, room_for(run, span, memory.allocate), tell)


class Message(NamedTuple):
    """What a worker sends for a task.

    Attributes:
        stream: the number of the stream of tasks.
        number: the number of the task in it.
        pickled: what the worker made, pickled by `dumped`; or where that lies in a block.
        made: the number and size of each block that the loader does not have yet; their descriptors come beside.
        dropped: the block that was offered, if it was too small.
    """

    stream: int
    number: int
    pickled: bytes | BlockView
    made: tuple[tuple[int, int], ...]
    dropped: tuple[int, ...]

    @classmethod
    def of(cls, stream: int, number: int, made: Any, memory: MessageMemory) -> tuple[Message, list[int]]:
        """Return the message with what a worker made, and the descriptors that go with it."""
        data = dumped(made, memory)
        pickled: bytes | BlockView = data
        if len(data) >= LARGE_BYTES:
            room = memory.allocate(len(data))
            room[:] = np.frombuffer(data, np.uint8)
            pickled = memory.view(torch.from_numpy(room))
        sizes = tuple((block, num_bytes) for block, (_, num_bytes) in memory.made.items())
        message = cls(stream, number, pickled, sizes, memory.dropped)
        return message, [descriptor for descriptor, _ in memory.made.values()]

    def read(self, table: BlockTable, descriptors: Sequence[int]) -> Any:
        """Return what the worker made, with tensors that are views of blocks."""
        made = {block: (one, size) for (block, size), one in zip(self.made, descriptors, strict=True)}
        table.received(self.number, made, self.dropped)
        pickled: Any = self.pickled
        if isinstance(pickled, BlockView):
            pickled = table.tensor(self.number, pickled).numpy().data
        return _Unpickler(io.BytesIO(pickled), lambda *view: table.tensor(self.number, BlockView(*view))).load()


def dumped(made: Any, memory: MessageMemory | None = None) -> bytes:
    """Pickle something for another process, with tensors as bytes, or as views of the memory if they are large."""

    def reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
        if is_plain and memory is not None and tensor.nbytes >= LARGE_BYTES and not tensor.is_quantized:
            return _tensor_in_block, tuple(memory.view(tensor))
        try:
            return torch.from_numpy, (tensor.numpy(),)
        except (TypeError, RuntimeError):  # NumPy has no such dtype or kind of tensor
            found: tuple[Any, ...] = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
            return found

    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, torch.Tensor: reduced}
    pickler.dump(made)
    return stream.getvalue()


def _tensor_in_block(block: int, begin: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Stand, in a pickle, for the function that knows the blocks."""
    raise NotImplementedError(f"only a loader has block {block}")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensor: Callable[..., torch.Tensor]) -> None:
        super().__init__(file)
        self._tensor = tensor

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _tensor_in_block.__name__):
            # No method, since what was unpickled would be kept in a cycle until the garbage collector comes by.
            return self._tensor
        return super().find_class(module, name)


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
        """Send a message and wait until it is sent; the descriptors are closed here.

        Raises:
            ConnectionError: the other process has ended.
        """
        try:
            socket.send_fds(self._socket, [_HEAD.pack(len(data), len(descriptors))], descriptors)
            self._socket.sendall(data)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

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
                data, descriptors, _, _ = socket.recv_fds(self._socket, wanted, _MOST_DESCRIPTORS)
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
