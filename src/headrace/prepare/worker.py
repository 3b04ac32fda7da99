"""The worker process: does one order after another until its parent hangs up.

`executor.Workers` starts it with one end of a socket pair, as a fork or as a fresh process; not through
``multiprocessing``'s start methods: those run the caller's ``__main__`` again in every worker.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from headrace.errors import HeadraceError, InputError, OutputError
from headrace.prepare.backends import MismatchError, ProvedEncoder, SpecialFinder
from headrace.prepare.buckets import BucketSorter
from headrace.prepare.documents import BlockEncoder, Encoder
from headrace.prepare.messages import Failed, HashDone, HashTask, Order, PieceDone, Progress, Reply, Setup, SortTask
from headrace.prepare.sources import SourceFile
from headrace.prepare.text_task import BadLineError, TextWork

PROGRESS_S = 0.4
HASH_BLOCK_BYTES = 1 << 20


def load_encoder(setup: Setup, tokenizer_json: bytes, proved: ProvedEncoder) -> Encoder:
    """What a run makes documents with."""
    if setup.making is None:
        return BlockEncoder(setup, proved, SpecialFinder(tokenizer_json))
    from headrace.prepare.record_encoder import RecordEncoder

    return RecordEncoder(setup, tokenizer_json, proved)


class Worker:
    """Does orders, and says on the way how far it is. ``proved`` is loaded where none is given, or another is due."""

    def __init__(self, connection: Connection, setup: Setup, proved: ProvedEncoder | None = None) -> None:
        self._connection = connection
        self._setup = setup
        self._proved = proved
        self._text: TextWork | None = None
        self._sorter = BucketSorter(setup.buckets, [np.dtype(column.dtype) for column in setup.columns])
        self._reported_s = time.monotonic()

    def handle(self, order: Order) -> Reply:
        """Do one order; what goes wrong becomes a `Failed`."""
        try:
            if isinstance(order, HashTask):
                return HashDone(order.number, self._hash(order.file))
            if isinstance(order, SortTask):
                return self._sorter.run(order)
            if self._text is None:
                self._text = self._load()
            return self._text.run(order)
        except BadLineError as error:
            return Failed(order.turn, "input", str(error), file=error.file, line=error.line)
        except MismatchError as error:
            return Failed(order.turn, "mismatch", str(error))
        except OutputError as error:
            return Failed(order.turn, "output", str(error))
        except HeadraceError as error:
            return Failed(order.turn, "input", str(error))
        except SystemExit:
            raise
        except BaseException:  # a panic in Rust is no Exception
            return Failed(order.turn, "crash", traceback.format_exc())

    def _load(self) -> TextWork:
        encoding, proved = self._setup.encoding, self._proved
        if proved is None or proved.name != encoding.backend:
            proved = ProvedEncoder(encoding.backend, Path(encoding.tokenizer).read_bytes(), encoding.special)
        encoder = load_encoder(self._setup, proved.json, proved)
        # Vocabulary and libraries stay: the collector need not walk them again with every block of records.
        gc.collect()
        gc.freeze()
        return TextWork(self._setup, encoder, report=self._report, deliver=self._deliver)

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

    def _deliver(self, piece: PieceDone) -> None:
        self._connection.send_bytes(msgspec.msgpack.encode(piece))

    def _report(self, progress: Progress) -> None:
        self._check_parent()
        now = time.monotonic()
        if now - self._reported_s >= PROGRESS_S:
            self._reported_s = now
            self._connection.send_bytes(msgspec.msgpack.encode(progress))

    def _check_parent(self) -> None:
        if os.getppid() != self._setup.parent:
            raise SystemExit(1)


def main(descriptor: int, proved: ProvedEncoder | None = None) -> None:
    """Serve the parent at the other end of this socket; ``proved`` is what a fork finds loaded."""
    connection = Connection(descriptor)
    try:
        message = connection.recv_bytes()
        worker = Worker(connection, msgspec.msgpack.decode(message, type=Setup), proved)
        decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
        while True:
            reply = worker.handle(decoder.decode(connection.recv_bytes()))
            connection.send_bytes(msgspec.msgpack.encode(reply))
    except (EOFError, ConnectionError):
        return  # the parent is done, or gone
