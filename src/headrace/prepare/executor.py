"""Worker processes, and the tasks dealt to them: results come in the order of the tasks, and nothing ever hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType

import msgspec

from headrace.errors import WorkerError
from headrace.prepare.messages import Failed, HashDone, Order, Progress, Reply, Setup, TextDone, TextTask

RUN_AHEAD = 2
"""Finished or running tasks a worker, besides the one whose turn it is: bounds the parts on disk."""

_EXIT_WAIT_S = 10.0
_COMMAND = "import sys; from headrace.prepare.worker import main; main(int(sys.argv[1]))"


class Workers:
    """Subprocesses, each at the end of its own socket, so that the death of one blocks no other.

    Leaving the context ends them all. A worker whose parent is killed ends by itself.
    """

    def __init__(self, num_workers: int, setup: Setup) -> None:
        self._setup = msgspec.msgpack.encode(setup)
        self._num_workers = num_workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

    def __enter__(self) -> Workers:
        try:
            for _ in range(self._num_workers):
                self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def __len__(self) -> int:
        return self._num_workers

    def send(self, worker: int, order: Order) -> None:
        """Give a worker its next order. A dead one shows at the next `receive`."""
        with contextlib.suppress(ConnectionError):
            self._connections[worker].send_bytes(msgspec.msgpack.encode(order))

    def receive(self, timeout_s: float) -> list[tuple[int, Reply]]:
        """What the workers said, one reply each; waits up to ``timeout_s`` for the first.

        Raises:
            WorkerError: one of them has ended.
        """
        replies: list[tuple[int, Reply]] = []
        for ready in wait(self._connections, timeout_s):
            worker = self._connections.index(ready)  # type: ignore[arg-type]
            try:
                message = self._connections[worker].recv_bytes()
            except (EOFError, OSError):
                raise WorkerError(self._describe_end(worker)) from None
            replies.append((worker, self._decoder.decode(message)))
        return replies

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(ours.detach())
            self._connections.append(connection)
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                # Processes are the parallelism here: threads inside each would only fight over the cores.
                "TOKENIZERS_PARALLELISM": "false",
            }
            with _interrupts_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _COMMAND, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # standard output may be a pipe that carries --json
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # Ctrl-C reaches the parent alone
                )
            self._processes.append(process)
        with contextlib.suppress(ConnectionError):
            connection.send_bytes(self._setup)

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()

    def _describe_end(self, worker: int) -> str:
        process = self._processes[worker]
        try:
            code = process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return f"worker {worker + 1} of {self._num_workers} (process {process.pid}) closed its connection and hangs"
        who = f"worker {worker + 1} of {self._num_workers} (process {process.pid})"
        if code == -signal.SIGKILL:
            return (
                f"{who} was killed (SIGKILL): most often the machine or the job ran out of memory (see `dmesg`, or the "
                "scheduler's log). Nothing was written. Run again with fewer --workers or more memory."
            )
        if code < 0:
            name = signal.strsignal(-code) or "unknown"
            return (
                f"{who} was ended by signal {-code} ({name}). Nothing was written. Run again; if it recurs, report it."
            )
        return f"{who} ended with exit status {code}; its last words are above. Nothing was written."


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started within never see SIGINT, from their first instruction on; it is the parent's to handle."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_tasks(
    workers: Workers,
    orders: Sequence[Order],
    *,
    on_progress: Callable[[Progress | None], None],
    interval_s: float,
) -> Iterator[TextDone | HashDone | Failed]:
    """Deal orders to idle workers; yield the results of text tasks in their order, of hash tasks as they come.

    A failed text task is yielded in its turn too, so that the error a user sees does not depend on the workers.
    At most ``RUN_AHEAD`` tasks a worker are ahead of the one whose turn it is. ``on_progress`` is called with each
    worker's report, and with None at least every ``interval_s`` seconds.

    Raises:
        WorkerError: a worker has ended.
    """
    waiting = iter(orders)
    following = next(waiting, None)
    finished: dict[int, TextDone | Failed] = {}
    idle = set(range(len(workers)))
    running = turn = 0
    window = RUN_AHEAD * len(workers) + 1
    while following is not None or running or finished:
        # Idle workers go first: appending the part whose turn it is takes a while.
        while idle and following is not None and not _is_too_far(following, turn + window):
            workers.send(idle.pop(), following)
            running += 1
            following = next(waiting, None)
        if turn in finished:
            yield finished.pop(turn)
            turn += 1
        for worker, reply in workers.receive(0.0 if turn in finished or not running else interval_s):
            if isinstance(reply, Progress):
                on_progress(reply)
                continue
            running -= 1
            idle.add(worker)
            if isinstance(reply, TextDone | Failed) and reply.number >= 0:
                finished[reply.number] = reply
            else:
                yield reply
        on_progress(None)


def _is_too_far(order: Order, limit: int) -> bool:
    return isinstance(order, TextTask) and order.task.number >= limit
