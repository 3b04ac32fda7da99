"""How a worker serves its parent: what it answers, how it tells of errors, and results that it leaves on disk."""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.poison import At
from headrace.errors import HeadraceError, OutputError, WorkerError
from headrace.io import atomic_write, output_errors

T = TypeVar("T")
S = TypeVar("S")

PROGRESS_S = 0.4
"""Seconds between two reports of a worker."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """A task is done."""

    task_index: int
    value: bytes = b"\xc0"
    """What the task found, as msgpack; nil of a probe."""

    @classmethod
    def of(cls, task_index: int, value: Any) -> Done:
        """The result of a task."""
        return cls(task_index, value=msgspec.msgpack.encode(value))

    def read(self, kind: type[T]) -> T:
        """Return what the task found."""
        return msgspec.msgpack.decode(self.value, type=kind)


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the running task is."""

    task_index: int
    counts: dict[str, int]
    """What it has counted so far, as its receipt will."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A task failed; the worker continues."""

    task_index: int
    message: str
    error_pickle: bytes = b""
    """The error, if it is one of Headrace or of the user's code; empty after a defect, whose traceback is
    ``message``."""

    @classmethod
    def of(cls, task_index: int, error: Exception) -> Failed:
        """The failure with an error that the parent raises again."""
        return cls(task_index, str(error), pickle.dumps(error))

    def error(self) -> Exception:
        """Return the error that the parent raises. The pickle is that of a child of this process."""
        if self.error_pickle:
            found: Exception = pickle.loads(self.error_pickle)
            return found
        return WorkerError(f"a worker failed unexpectedly; please report this:\n{self.message}")


Reply = Done | Progress | Failed | At


class Parent:
    """The parent of a worker, at the other end of its socket. If it is gone, the worker ends.

    Args:
        connection: the socket.
        process: its process id.
    """

    def __init__(self, connection: Connection, process: int) -> None:
        self._connection = connection
        self._process = process
        self._reported_s = time.monotonic()

    def send(self, reply: Reply) -> None:
        """Send a reply."""
        self._connection.send_bytes(msgspec.msgpack.encode(reply))

    def report(self, progress: Progress) -> None:
        """Send a report, unless the last one was a moment ago."""
        self.check()
        now = time.monotonic()
        if now - self._reported_s >= PROGRESS_S:
            self._reported_s = now
            self.send(progress)

    def check(self) -> None:
        """Raise SystemExit if the parent is gone."""
        if os.getppid() != self._process:
            raise SystemExit(1)


def serve(descriptor: int, setup: type[S], orders: Any, handler: Callable[[Parent, S], Callable[[Any], Reply]]) -> None:
    """Do the orders of the parent, one after another, until it closes the connection.

    Args:
        descriptor: the socket.
        setup: the type of the first message, which has a field ``parent``, a process id.
        orders: the type of all others.
        handler: makes the function that does an order.
    """
    connection = Connection(descriptor)
    try:
        first: Any = msgspec.msgpack.decode(connection.recv_bytes(), type=setup)
        parent = Parent(connection, first.parent)
        handle = handler(parent, first)
        decoder = msgspec.msgpack.Decoder(orders)
        while True:
            parent.send(handle(decoder.decode(connection.recv_bytes())))
    except (EOFError, ConnectionError):
        return  # the parent has finished, or was killed


def attempted(task_index: int, do: Callable[[], Reply]) -> Reply:
    """Do a task; any error becomes a `Failed`."""
    try:
        return do()
    except HeadraceError as error:
        return Failed.of(task_index, error)
    except SystemExit:
        raise
    except BaseException:  # a panic in Rust is not an Exception
        return Failed(task_index, traceback.format_exc())


def save(path: Path, value: Any, *, sync: bool = False) -> None:
    """Write a result, followed by its hash, atomically.

    Args:
        path: the file.
        value: the result, which is encoded as msgpack; it may hold arrays.
        sync: whether to flush it to the disk, so that it survives a loss of power.

    Raises:
        OutputError: the file cannot be written.
    """
    data = msgspec.msgpack.encode(value, enc_hook=_encoded_array)
    data += xxhash.xxh3_64_digest(data)
    if sync:
        atomic_write(path, data)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with output_errors(path, "write"):
        temporary.write_bytes(data)
        temporary.rename(path)


def _encoded_array(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value).__name__} cannot be kept. Please report this defect.")
    return value.dtype.str, value.shape, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _decoded_array(kind: type, value: Any) -> NDArray[Any]:
    dtype, shape, data = value
    return np.frombuffer(data, dtype).reshape(shape)


def load(path: Path, kind: type[T]) -> T | None:
    """Read a result that `save` wrote; None if there is none, or it is incomplete after a loss of power.

    Raises:
        OutputError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return decoded(data, kind)


def decoded(data: bytes, kind: type[T]) -> T | None:
    """Decode the content of a file that `save` wrote; None if it is incomplete after a loss of power."""
    if xxhash.xxh3_64_digest(data[:-8]) != data[-8:]:
        return None
    try:
        return msgspec.msgpack.decode(data[:-8], type=kind, dec_hook=_decoded_array)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
