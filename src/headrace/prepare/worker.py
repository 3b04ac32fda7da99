"""The worker process: does one order after another until its parent hangs up.

`executor.Workers` starts it with one end of a socket pair, not through ``multiprocessing``'s start methods: those run
the caller's ``__main__`` again in every worker.
"""

from __future__ import annotations

import os
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import xxhash

from headrace.errors import InputError, OutputError
from headrace.prepare.inputs import SourceFile
from headrace.prepare.messages import Failed, HashDone, HashTask, Order, Progress, Reply, Setup, TextTask
from headrace.prepare.text_task import BadLineError, TextEncoder
from headrace.prepare.tokenizer import make_encoder

PROGRESS_S = 0.4
HASH_BLOCK_BYTES = 1 << 20


class Worker:
    """Does orders, and says on the way how far it is."""

    def __init__(self, connection: Connection, setup: Setup) -> None:
        self._connection = connection
        self._parent = setup.parent
        self._text = TextEncoder(setup, make_encoder(Path(setup.tokenizer).read_bytes()), self._report)
        self._reported_s = time.monotonic()

    def handle(self, order: Order) -> Reply:
        """Do one order; what goes wrong becomes a `Failed`."""
        number = order.task.number if isinstance(order, TextTask) else -1
        try:
            if isinstance(order, HashTask):
                return HashDone(order.number, self._hash(order.file))
            return self._text.run(order)
        except BadLineError as error:
            return Failed(number, "input", str(error), file=error.file, line=error.line)
        except InputError as error:
            return Failed(number, "input", str(error))
        except OutputError as error:
            return Failed(number, "output", str(error))
        except SystemExit:
            raise
        except BaseException:  # a panic in Rust is no Exception
            return Failed(number, "crash", traceback.format_exc())

    def _hash(self, file: SourceFile) -> str:
        hasher = xxhash.xxh3_128()
        view = memoryview(bytearray(HASH_BLOCK_BYTES))
        try:
            with Path(file.path).open("rb", buffering=0) as source:
                while count := source.readinto(view):
                    hasher.update(view[:count])
                    self._check_parent()
                file.check_unchanged(os.fstat(source.fileno()))
        except OSError as error:
            raise InputError(f"{file.name}: the file cannot be read: {error.strerror or error}") from error
        return hasher.hexdigest()

    def _report(self, progress: Progress) -> None:
        self._check_parent()
        now = time.monotonic()
        if now - self._reported_s >= PROGRESS_S:
            self._reported_s = now
            self._connection.send_bytes(msgspec.msgpack.encode(progress))

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            raise SystemExit(1)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of this socket."""
    connection = Connection(descriptor)
    try:
        message = connection.recv_bytes()
        worker = Worker(connection, msgspec.msgpack.decode(message, type=Setup))
        decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
        while True:
            reply = worker.handle(decoder.decode(connection.recv_bytes()))
            connection.send_bytes(msgspec.msgpack.encode(reply))
    except (EOFError, ConnectionError):
        return  # the parent is done, or gone
