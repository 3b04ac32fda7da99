"""Requests of a forked process, made by a process of its own that is started anew.

The runtime of obstore does not survive a fork: a request in the child would wait forever. So a child whose parent has
used it starts ``python -m headrace.io.objects.forked``, and sends it requests through a pair of sockets, which nobody
else can reach. Credentials go through them too, never through arguments or the environment. The process ends when the
child does.

    request    4 bytes length, then a msgpack array (number, `FetchRequest`)
    reply      4 bytes length, then a msgpack array (number, the `FetchReply` without its data, kind and words of the
               error, sizes), then the bytes of each range
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import msgspec

from headrace import errors
from headrace.errors import StoreError
from headrace.io.objects.client import FETCH_THREAD, Client, FetchReply, FetchRequest, FetchStats
from headrace.io.remote import Status

_LENGTH: Final = struct.Struct("<I")


class _Answer(msgspec.Struct, array_like=True):
    number: int
    stats: FetchStats
    status: Status | None
    objects: list[tuple[str, Status]]
    folders: list[str]
    error: tuple[str, str] | None
    sizes: list[int]


class ForkedClient:
    """Sends requests to a process that is started for this one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            paths = os.pathsep.join(path for path in sys.path if path)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths}
            )
        self._socket = ours
        self._lock = Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[FetchReply]] = {}
        self._is_lost = False
        Thread(target=self._receive, name=FETCH_THREAD, daemon=True).start()

    def submit(self, request: FetchRequest) -> Future[FetchReply]:
        """Begin a request; see `Client.submit`."""
        future: Future[FetchReply] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            data = msgspec.msgpack.encode((number, request))
            try:
                self._socket.sendall(_LENGTH.pack(len(data)) + data)
            except OSError:
                self._is_lost = True
            if self._is_lost:
                self._waiting.pop(number, None)
        if self._is_lost and not future.done():
            future.set_result(_lost(request.what.url))
        return future

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(_Answer)
        stream = self._socket.makefile("rb", buffering=1 << 20)
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            answer = decoder.decode(stream.read(_LENGTH.unpack(head)[0]))
            data = [stream.read(size) for size in answer.sizes]
            if any(len(one) != size for one, size in zip(data, answer.sizes, strict=True)):
                break
            with self._lock:
                future = self._waiting.pop(answer.number)
            future.set_result(
                FetchReply(
                    stats=answer.stats,
                    data=data,
                    status=answer.status,
                    objects=answer.objects,
                    folders=answer.folders,
                    error=None if answer.error is None else _error(*answer.error),
                )
            )
        with self._lock:
            self._is_lost = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_result(_lost("an object"))


def _lost(url: str) -> FetchReply:
    words = f"{url}: the process that fetches for this one has ended, by a signal or for want of memory; start again"
    return FetchReply(stats=FetchStats(), error=StoreError(words))


def _error(kind: str, words: str) -> Exception:
    found = FileNotFoundError if kind == "FileNotFoundError" else getattr(errors, kind, StoreError)
    error: Exception = found(words)
    return error


def serve(connection: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    client = Client()
    done: SimpleQueue[tuple[int, Future[FetchReply]]] = SimpleQueue()
    stream = connection.makefile("rb")
    decoder = msgspec.msgpack.Decoder(tuple[int, FetchRequest])

    def answer(number: int, future: Future[FetchReply]) -> None:
        reply = future.result()
        error = None if reply.error is None else (type(reply.error).__name__, str(reply.error))
        data: list[Any] = [] if error else [memoryview(one) for one in reply.data]
        sizes = [len(one) for one in data]
        head = msgspec.msgpack.encode(
            _Answer(number, reply.stats, reply.status, reply.objects, reply.folders, error, sizes)
        )
        connection.sendall(_LENGTH.pack(len(head)) + head)
        for one in data:
            connection.sendall(one)

    def put(number: int, future: Future[FetchReply]) -> None:
        done.put((number, future))

    def send() -> None:
        while True:
            answer(*done.get())

    # A thread of its own sends, so that requests go on while the other end is slow to take an answer.
    Thread(target=send, name="headrace-send", daemon=True).start()
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        number, request = decoder.decode(stream.read(_LENGTH.unpack(head)[0]))
        client.submit(request).add_done_callback(partial(put, number))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
