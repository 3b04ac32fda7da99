"""Worker processes, and the tasks assigned to them. Results come in the order of the tasks.

A worker that ends is noticed, and another takes its place, so that the run never waits for it. Records that end each
worker are found and left out, see `headrace.engine.poison`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec

from headrace.engine.forking import ONE_THREAD, Child, forked, interrupts_blocked, may_fork
from headrace.engine.poison import MAX_DEATHS, AnyTask, At, Ended, RecordTask, Search
from headrace.engine.serving import Done, Failed, Progress, Reply
from headrace.errors import WorkerError

REPORT_S = 0.2
"""Seconds between two calls with the progress of a run."""

GROWTH_S = 0.5
"""Seconds after which a second worker begins, if there is work for it; from then on, their number may double as often.

A fork costs a tenth of a CPU second, and a fresh process a second, which a job of a moment need not pay.
"""

_EXIT_WAIT_S = 10.0
_FAREWELL_S = 2.0


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerProcesses:
    """Worker processes, each with its own socket, so that the death of one does not block the others.

    Each is started with its first task. Leaving the context ends them all. If no error occurred, they have a moment to
    end by themselves, together with what they have started; then they are killed. A worker whose parent is killed ends
    by itself, too.

    Args:
        num_workers: the most processes.
        setup: the first message to each.
        main: the function that serves a descriptor in a worker, as ``module:function``.
        serve: a function that serves a descriptor in a fork of this process and uses what is loaded here. It takes the
            place of ``main`` if this process can be forked.
    """

    def __init__(
        self,
        num_workers: int,
        setup: msgspec.Struct,
        main: str,
        serve: Callable[[int], None] | None = None,
    ) -> None:
        self._setup = msgspec.msgpack.encode(setup)
        module, _, function = main.partition(":")
        self._command = f"import sys; from {module} import {function}; {function}(int(sys.argv[1]))"
        self._serve = serve
        self._num_workers = num_workers
        self._processes: dict[int, subprocess.Popen[bytes] | Child] = {}
        self._connections: dict[int, Connection] = {}
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

    def __enter__(self) -> WorkerProcesses:
        self._began_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._dismiss()
        self._stop()

    def __len__(self) -> int:
        """How many may have a task now: these are the first ones. See `GROWTH_S`."""
        doubled = int((time.monotonic() - self._began_s) / GROWTH_S)
        return min(self._num_workers, 1 << min(doubled, 30))

    def send(self, worker: int, task: AnyTask) -> None:
        """Send a worker its next task, and start it before if there is none. If it dies, `receive` reports that.

        Raises:
            WorkerError: it cannot be started.
        """
        if worker not in self._processes:
            self._start(worker)
        with contextlib.suppress(ConnectionError):
            self._connections[worker].send_bytes(msgspec.msgpack.encode(task))

    def receive(self, timeout_s: float) -> list[tuple[int, Reply | None]]:
        """Replies of the workers, at most one from each, or None from one that has ended.

        It waits up to ``timeout_s`` for the first reply.
        """
        replies: list[tuple[int, Reply | None]] = []
        workers = {connection: worker for worker, connection in self._connections.items()}
        for ready in wait(list(workers), timeout_s):
            worker = workers[ready]  # type: ignore[index]
            try:
                message = self._connections[worker].recv_bytes()
            except (EOFError, OSError):
                replies.append((worker, None))
            else:
                replies.append((worker, self._decoder.decode(message)))
        return replies

    def bury(self, worker: int) -> Ended:
        """Forget a process that has ended, so that the next task starts another. Returns in words how it ended."""
        ended = self._describe_end(worker)
        self._connections.pop(worker).close()
        process = self._processes.pop(worker)
        process.kill()
        process.wait()
        return ended

    def _start(self, worker: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(ours.detach())
            try:
                with interrupts_blocked():
                    process = self._process(theirs.fileno())
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError):
                    raise
                raise WorkerError(
                    f"a worker process cannot be started: {error.strerror or error}. What is done so far is kept: run "
                    "the same command again, with fewer --workers."
                ) from error
        self._processes[worker], self._connections[worker] = process, connection
        with contextlib.suppress(ConnectionError):
            connection.send_bytes(self._setup)

    def _process(self, descriptor: int) -> subprocess.Popen[bytes] | Child:
        if self._serve is not None and may_fork():
            return forked(functools.partial(self._serve, descriptor), descriptor)
        path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-c", self._command, str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output may be a pipe that carries --json
            env={**os.environ, "PYTHONPATH": path, **ONE_THREAD},
            pass_fds=[descriptor],
            process_group=0,  # Ctrl-C reaches the parent alone
        )

    def _dismiss(self) -> None:
        for connection in self._connections.values():
            connection.close()
        until = time.monotonic() + _FAREWELL_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))

    def _stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        for connection in self._connections.values():
            connection.close()

    def _describe_end(self, worker: int) -> Ended:
        process = self._processes[worker]
        name = f"worker {worker + 1} of {self._num_workers} (process {process.pid})"
        try:
            code = process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return Ended(name, "closed its connection and hangs")
        if code == -signal.SIGKILL:
            return Ended(
                name,
                "was killed (SIGKILL): most often the machine or the job ran out of memory (see `dmesg`, or the "
                "scheduler's log)",
            )
        if code < 0:
            return Ended(name, f"was ended by signal {-code} ({signal.strsignal(-code) or 'unknown'})")
        return Ended(name, f"ended with exit status {code}", "; its last output is above")


class WorkerTasks:
    """The tasks that worker processes have, one each. If a worker ends, its task starts again in another.

    A task that ends several workers is searched for the records that do it, and done without them.

    Args:
        workers: the processes, which have no task yet.
        next_task: returns the task for an idle worker; None if there is none now.
    """

    def __init__(self, workers: WorkerProcesses, next_task: Callable[[], AnyTask | None]) -> None:
        self._workers = workers
        self._next_task = next_task
        self._running: dict[int, AnyTask] = {}
        self._again: collections.deque[AnyTask] = collections.deque()
        self._deaths: collections.Counter[AnyTask] = collections.Counter()
        self._searches: dict[int, Search] = {}

    @property
    def is_running(self) -> bool:
        """Whether a worker has a task, or one has to start again."""
        return bool(self._running or self._again)

    def assign(self) -> None:
        """Send tasks to idle workers."""
        for worker in range(len(self._workers)):
            if worker in self._running:
                continue
            task = self._again.popleft() if self._again else self._next_task()
            if task is None:
                return
            self._running[worker] = task
            self._workers.send(worker, task)

    def receive(self, timeout_s: float) -> Iterator[Done | Failed | Progress]:
        """Yield replies of the workers; wait up to ``timeout_s`` for the first.

        Raises:
            WorkerError: several workers have ended in the same task.
        """
        for worker, reply in self._workers.receive(timeout_s):
            if reply is None:
                self._bury(worker)
                continue
            if isinstance(reply, At):
                self._searches[reply.task_index].at = reply
                continue
            if isinstance(reply, Failed | Done):
                task = self._running.pop(worker)
                search = self._searches.get(reply.task_index)
                if isinstance(reply, Done) and search is not None and not search.is_over:
                    self._go_on(search, task, search.survive())
                    continue
                self._searches.pop(reply.task_index, None)
            yield reply

    def _bury(self, worker: int) -> None:
        task = self._running.pop(worker, None)
        ended = self._workers.bury(worker)
        if task is None:
            return  # it had done its task
        search = self._searches.get(task.task_index)
        if search is not None and not search.is_over:
            self._go_on(search, task, search.blame(ended), ended)
            return
        self._deaths[task] += 1
        if self._deaths[task] < MAX_DEATHS:
            self._again.append(task)
        elif search is None and isinstance(task, RecordTask):
            search = Search(task)
            self._searches[task.task_index] = search
            self._again.append(search.order)
        else:
            raise _given_up(task, ended)

    def _go_on(self, search: Search, task: AnyTask, unclear: str, ended: Ended | None = None) -> None:
        """Give the next order of a search, unless it has become clear that no record is to blame."""
        if unclear:
            raise _given_up(task, ended, f" No record is to blame: {unclear}.")
        self._again.append(search.order)


def _given_up(task: AnyTask, ended: Ended | None, why: str = "") -> WorkerError:
    """The error after several workers have ended in a task."""
    return WorkerError(
        f"{ended or 'a worker ended'}. It was the {MAX_DEATHS}rd worker that ended in the same task ({task.label})."
        f"{why} To go on, run the same command again, with fewer --workers or more memory."
    )
