"""The worker process of a run over media: does one order after another until its parent hangs up."""

from __future__ import annotations

import os
import time
import traceback
from multiprocessing.connection import Connection

import msgspec

from headrace.errors import HeadraceError, OutputError, StoreError
from headrace.io import file_sum
from headrace.prepare.messages import Failed, HashDone, PieceDone, Progress, Reply
from headrace.prepare.shards.filling import Filler
from headrace.prepare.shards.messages import FillTask, ShardOrder, ShardSetup, SumTask
from headrace.prepare.shards.survey import Surveyor

PROGRESS_S = 0.4
COMMAND = "import sys; from headrace.prepare.shards.worker import main; main(int(sys.argv[1]))"


class Worker:
    """Does orders, and says on the way how far it is."""

    def __init__(self, connection: Connection, setup: ShardSetup) -> None:
        self._connection = connection
        self._parent = setup.parent
        self._turn = -1
        self._reported_s = time.monotonic()
        self._surveyor = Surveyor(setup.survey, lambda size, samples, parts: self._report(size, samples, parts))
        self._filler = Filler(setup, lambda size, samples: self._report(size, samples, size))

    def handle(self, order: ShardOrder) -> Reply:
        """Do one order; what goes wrong becomes a `Failed`."""
        self._turn = order.turn
        try:
            if isinstance(order, SumTask):
                digest = file_sum(order.file.path).xxh3_128
                order.file.check_unchanged(os.stat(order.file.path))  # noqa: PTH116
                return HashDone(order.number, digest)
            if isinstance(order, FillTask):
                self._filler.run(order)
            else:
                self._surveyor.run(order)
            return PieceDone(order.turn, 0, True)
        except OutputError as error:
            return Failed(order.turn, "output", str(error))
        except StoreError as error:  # of `file_sum`
            return Failed(order.turn, "input", str(error))
        except HeadraceError as error:
            return Failed(order.turn, "input", str(error))
        except SystemExit:
            raise
        except BaseException:
            return Failed(order.turn, "crash", traceback.format_exc())

    def _report(self, size: int, samples: int, content: int) -> None:
        if os.getppid() != self._parent:
            raise SystemExit(1)
        now = time.monotonic()
        if now - self._reported_s >= PROGRESS_S:
            self._reported_s = now
            self._connection.send_bytes(msgspec.msgpack.encode(Progress(self._turn, size, samples, content)))


def main(descriptor: int) -> None:
    """Serve the parent at the other end of this socket."""
    connection = Connection(descriptor)
    try:
        worker = Worker(connection, msgspec.msgpack.decode(connection.recv_bytes(), type=ShardSetup))
        decoder: msgspec.msgpack.Decoder[ShardOrder] = msgspec.msgpack.Decoder(ShardOrder)
        while True:
            reply = worker.handle(decoder.decode(connection.recv_bytes()))
            connection.send_bytes(msgspec.msgpack.encode(reply))
    except (EOFError, ConnectionError):
        return  # the parent is done, or gone
