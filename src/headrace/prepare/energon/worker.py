"""Who reads shards and files: worker processes, or this process where there is one worker."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import HeadraceError, InputError, OutputError, WorkerError
from headrace.prepare.energon.finding import FoundTar
from headrace.prepare.energon.media_files import MediaTask, read_media
from headrace.prepare.energon.options import MediaFilter
from headrace.prepare.energon.scanning import scan_tar
from headrace.prepare.executor import RUN_AHEAD, Workers, run_tasks
from headrace.prepare.messages import Failed, HashDone, PieceDone, Progress, Reply

COMMAND: Final = "import sys; from headrace.prepare.energon.worker import main; main(int(sys.argv[1]))"
REPORT_S: Final = 0.2


class ReadSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: what is the same for every order."""

    parent: int
    root: str
    scans: str
    media: MediaFilter | None
    skips_faults: bool


class ScanTask(msgspec.Struct, frozen=True, tag=True):
    """Read a shard."""

    turn: int
    tar: FoundTar


ReadTask = ScanTask | MediaTask


def do(setup: ReadSetup, order: ReadTask) -> None:
    """Do one order; raises as `scan_tar`."""
    root, scans = Path(setup.root), Path(setup.scans)
    if isinstance(order, ScanTask):
        scan_tar(root, scans, order.tar, setup.media, skips_faults=setup.skips_faults)
    elif setup.media is not None:
        read_media(root, scans, order, setup.media)


def handle(setup: ReadSetup, order: ReadTask) -> Reply:
    """Do one order; what goes wrong becomes a `Failed`."""
    try:
        do(setup, order)
        return PieceDone(order.turn, 0, True)
    except OutputError as error:
        return Failed(order.turn, "output", str(error))
    except HeadraceError as error:
        return Failed(order.turn, "input", str(error))
    except BaseException:
        return Failed(order.turn, "crash", traceback.format_exc())


def read_all(
    orders: Sequence[ReadTask], setup: ReadSetup, num_workers: int, on_wait: Callable[[], None]
) -> Generator[int]:
    """Do the orders; yields the turn of each when it is done, in their order.

    Args:
        orders: their turns count from 0.
        setup: of the workers.
        num_workers: 1: in this process.
        on_wait: called now and then.

    Raises:
        InputError, OutputError: as the first order that failed, in their order.
        WorkerError: workers end before their work is done.
    """
    if min(num_workers, len(orders)) <= 1:
        for order in orders:
            do(setup, order)
            yield order.turn
        return

    def waited(progress: Progress | None) -> None:
        on_wait()

    with Workers(min(num_workers, len(orders)), setup, COMMAND) as workers:
        results = run_tasks(
            workers, orders, first_turn=0, ready=[], run_ahead=8 * RUN_AHEAD, on_progress=waited, interval_s=REPORT_S
        )
        for result in results:
            if isinstance(result, Failed):
                raise _as_error(result)
            if not isinstance(result, HashDone):
                yield result.turn


def _as_error(failed: Failed) -> HeadraceError:
    if failed.kind == "output":
        return OutputError(failed.message)
    if failed.kind == "crash":
        return WorkerError(f"a worker failed in a way nobody foresaw; please report this:\n{failed.message}")
    return InputError(failed.message)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of this socket."""
    connection = Connection(descriptor)
    try:
        setup = msgspec.msgpack.decode(connection.recv_bytes(), type=ReadSetup)
        decoder: msgspec.msgpack.Decoder[ReadTask] = msgspec.msgpack.Decoder(ReadTask)
        while os.getppid() == setup.parent:
            reply = handle(setup, decoder.decode(connection.recv_bytes()))
            connection.send_bytes(msgspec.msgpack.encode(reply))
    except (EOFError, ConnectionError):
        return  # the parent is done, or gone
