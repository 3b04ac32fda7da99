"""Requests of a forked process, made by a process of its own that is started anew.

The runtime of obstore does not survive a fork: a request in the child would wait forever. So a child whose parent has
used it starts ``python -m headrace.io.objects.forked``, and sends it requests through a pair of sockets, which nobody
else can reach. Credentials go through them too, never through arguments or the environment. The process ends when the
child does.

    request    a pickle of its number and the `FetchRequest`
    reply      a pickle of the number, the `FetchReply` without its data, and their number; then the bytes of each range
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Final

import msgspec

from headrace.errors import StoreError
from headrace.io.objects.client import FETCH_THREAD, Client, FetchReply, FetchRequest, FetchStats

_ENDED: Final = (EOFError, OSError, pickle.UnpicklingError)
"""The other process has ended, perhaps while it sent something."""


class ForkedClient:
    """Sends requests to a process that is started for this one."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            paths = os.pathsep.join(path for path in sys.path if path)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths}
            )
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
            if not self._is_lost:
                self._waiting[number] = future
                with contextlib.suppress(OSError):  # then the other thread finds the end, too
                    self._connection.send((number, request))
                return future
        future.set_result(_lost(request.what.url))
        return future

    def _receive(self) -> None:
        with contextlib.suppress(*_ENDED):
            while True:
                number, reply, num_ranges = self._connection.recv()
                reply.data = [self._connection.recv_bytes() for _ in range(num_ranges)]
                with self._lock:
                    future = self._waiting.pop(number)
                future.set_result(reply)
        with self._lock:
            self._is_lost = True
        for future in self._waiting.values():
            future.set_result(_lost("an object"))


def _lost(url: str) -> FetchReply:
    words = f"{url}: the process that fetches for this one has ended, by a signal or for want of memory; start again"
    return FetchReply(stats=FetchStats(), error=StoreError(words))


def serve(connection: Connection) -> None:
    """Answer requests until the other end is closed."""
    client = Client()
    done: SimpleQueue[tuple[int, Future[FetchReply]]] = SimpleQueue()

    def put(number: int, future: Future[FetchReply]) -> None:
        done.put((number, future))

    def send() -> None:
        while True:
            number, future = done.get()
            reply = future.result()
            connection.send((number, msgspec.structs.replace(reply, data=()), len(reply.data)))
            for one in reply.data:
                connection.send_bytes(one)

    # A thread of its own sends, so that requests go on while the other end is slow to take an answer.
    Thread(target=send, name="headrace-send", daemon=True).start()
    with contextlib.suppress(*_ENDED):
        while True:
            number, request = connection.recv()
            client.submit(request).add_done_callback(partial(put, number))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
