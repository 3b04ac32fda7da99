"""Where workers come from: a server that was forked from the program and forks them, or processes that start anew.

    the program --fork--> server --fork--> worker 0, worker 1, and those that replace them

The server does nothing but fork workers, and say how they have ended. So the first worker and the hundredth have the
same of the program: what it had when the server was forked. It has one thread, imports nothing and makes no request.

A fork has only one thread of its parent, and locks that other threads hold at that moment stay locked in it. So the
server proves itself before it is used: it takes the locks of logging, and answers.

The loader and the server talk through a pair of sockets. The loader makes the socket of a worker after the fork, and
sends the worker's end. A worker that has ended is waited for only when the loader asks how it ended, so that its id
belongs to no other process before.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.process
import os
import pickle
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import connection, get_context
from time import monotonic, sleep
from typing import Final

import torch

from headrace.engine.forking import Child, forked, interrupts_blocked
from headrace.errors import ConfigError, WorkerError
from headrace.loader.reading import METRICS_THREAD, left_by_forks
from headrace.loader.workers.messages import Channel
from headrace.loader.workers.worker import Table, TraceFile, WorkerSetup

_READY, _START, _ENDED = "ready", "start", "ended"
_ALIVE: Final = 1 << 16
_LOOK_S: Final = 1.0
_ANSWER_S: Final = 10.0
_PROOF_BYTES: Final = (100, 1 << 16, 1 << 20)
_END_S: Final = 5.0


def not_in_forks() -> list[str]:
    """Return in words what this process has now and its forks have not, or must not use.

    Workers are forked all the same, as those of torch are: they use none of it. What can go wrong is a lock that
    another thread holds at that moment. Then the server or a worker hangs, which is noticed, and these words are part
    of what is said.

    - CUDA, once initialised, cannot be used in a fork. JAX has threads of its own from its first computation on.
    - NCCL registers memory with devices. The threads of gloo hold only locks of gloo, which a worker never takes.
    - The thread that serves metrics holds no lock that matters.
    """
    found = ["CUDA"] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    me = threading.current_thread()
    return [*found, *left_by_forks()] + [
        f"thread {one.name!r}" for one in threading.enumerate() if one is not me and one.name != METRICS_THREAD
    ]


class Worker:
    """A worker process, and the loader's end of its socket.

    Args:
        pid: its id.
        channel: the socket.
        ended: returns in words how it has ended; None if it lives.

    Attributes:
        how_ended: these words, once it is known that it has ended.
    """

    def __init__(self, pid: int, channel: Channel, ended: Callable[[], str | None]) -> None:
        self.pid = pid
        self.channel = channel
        self._ended = ended
        self.how_ended: str | None = None

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        if self.how_ended is None:
            self.how_ended = self._ended()
        return self.how_ended is None

    def kill(self) -> None:
        """Send SIGKILL if it has not ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _how(code: int | None) -> str:
    """Say how a process has ended, by its exit code, or minus the number of the signal that ended it."""
    if code is None:  # other code has waited for it
        return "has ended"
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    hint = " (as the system does when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class NotProved(Exception):  # noqa: N818 -- never seen by users
    """A server does not answer, or its first task does not come."""


class ForkServer:
    """The server of the workers of a loader, as the loader knows it.

    Args:
        setup: what workers do.
        limit_s: how long the server may take to prove itself.

    Raises:
        WorkerError: the system refuses another process.
        NotProved: the server hangs.
    """

    def __init__(self, setup: WorkerSetup, limit_s: float) -> None:
        self.is_lost = False
        """Whether the server has ended or hangs. Its workers end with it."""
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        with theirs:
            try:
                self._child: Child = forked(partial(_serve, theirs, setup), theirs.fileno(), is_clean=False)
            except OSError as error:
                ours.close()
                raise WorkerError(f"worker processes cannot be started: {error}") from error
        if self._answer(_READY, 0, limit_s=limit_s) is None:
            self.end()
            raise NotProved(
                f"the server that forks workers (process {self._child.pid}) did not answer within {limit_s:.3g} s of"
                " its own fork"
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def start(self, number: int) -> Worker:
        """Start a worker; see `WorkerSetup.serve`.

        Raises:
            WorkerError: the system refuses another process, or the server is lost.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._answer(_START, number, theirs.fileno())
        if pid is None or pid < 0:
            ours.close()
            why = "their server has ended" if pid is None else os.strerror(-pid)
            raise WorkerError(f"worker processes cannot be started: {why}")
        return Worker(pid, Channel(ours), partial(self._how_ended, pid))

    def _how_ended(self, pid: int) -> str | None:
        """Say how a worker has ended, once; None if it is alive."""
        found = self._answer(_ENDED, pid)
        return None if found == _ALIVE else _how(-signal.SIGKILL if found is None else found)

    def _answer(self, what: str, number: int, *descriptors: int, limit_s: float = _ANSWER_S) -> int | None:
        """Return the server's answer to a question; None if it is lost."""
        question, until = (what, number), monotonic() + limit_s
        with self._lock:
            if not self.is_lost:
                with contextlib.suppress(OSError, EOFError):
                    self._channel.send(pickle.dumps(question), descriptors)
                    while (received := self._channel.receive(max(0.0, until - monotonic()))) is not None:
                        # The answer to a question before may come only now, if an interrupt was raised while it was
                        # due.
                        asked, answer = pickle.loads(received[0])
                        if asked == question:
                            return int(answer)
                self.is_lost = True
                self._child.kill()
        return None

    def end(self) -> None:
        """End the server and its workers within seconds."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.0 if self.is_lost else _END_S)
        self._child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_S)
        self.is_lost = True


def _serve(end: socket.socket, setup: WorkerSetup) -> None:
    """Fork workers, and say how they have ended, until the loader closes its end or has ended. Called in the server."""
    parent, workers, channel = os.getppid(), set[int](), Channel(end)
    _prove()
    while os.getppid() == parent:
        try:
            if (received := channel.receive(_LOOK_S)) is not None:
                question = what, number = pickle.loads(received[0])
                channel.send(pickle.dumps((question, _done(what, number, received[1], setup, workers))))
        except (EOFError, OSError):
            break
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)


def _prove() -> None:
    """Do what hangs if a lock that another thread of the program held is frozen."""
    loggers = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for logger in (logging.root, *loggers):
        for handler in logger.handlers:
            handler.acquire()
            handler.release()
    for size in _PROOF_BYTES:
        bytearray(size)


def _done(what: str, number: int, descriptors: list[int], setup: WorkerSetup, workers: set[int]) -> int:
    if what == _START:
        [descriptor] = descriptors
        try:
            child = forked(partial(_work, setup, descriptor, number, os.getpid()), descriptor, is_clean=False)
        except OSError as error:
            return -(error.errno or 1)
        finally:
            os.close(descriptor)
        workers.add(child.pid)
        return child.pid
    if what == _ENDED and number in workers:
        pid, status = os.waitpid(number, os.WNOHANG)
        if not pid:
            return _ALIVE
        workers.discard(number)
        return os.waitstatus_to_exitcode(status)
    return 0


def _work(setup: WorkerSetup, descriptor: int, number: int, server: int) -> None:
    setup.serve(socket.socket(fileno=descriptor), number, server, dies_with_parent=True)


def spawned(setup: WorkerSetup, pickled: bytes, number: int) -> Worker:
    """Start a worker anew.

    Raises:
        WorkerError: the system refuses another process.
    """
    ours, theirs = socket.socketpair()
    # The kernel sends its signal when the thread that started a process ends; only the main one surely stays.
    dies = threading.current_thread() is threading.main_thread()
    process = get_context("spawn").Process(target=_spawned, args=(theirs, number, os.getpid(), dies), daemon=True)
    with theirs:
        try:
            with interrupts_blocked():
                process.start()
        except (RuntimeError, OSError) as error:
            ours.close()
            raise WorkerError(f"worker processes cannot be started: {error}") from error
    # Else multiprocessing would end it with each fork of this process. It has no public function for that.
    getattr(multiprocessing.process, "_children", set()).discard(process)

    def ended() -> str | None:
        # Python alone would say that it lives after a handler of SIGCHLD has waited for it.
        is_alive = process.is_alive() and not connection.wait([process.sentinel], 0)
        return None if is_alive else _how(process.exitcode)

    channel = Channel(ours)
    socket.send_fds(ours, [b"d"], (setup.table.descriptor, setup.trace.descriptor))
    channel.post(pickled)
    return Worker(process.pid or 0, channel, ended)


def _spawned(end: socket.socket, number: int, parent: int, dies_with_parent: bool) -> None:
    _, descriptors, _, _ = socket.recv_fds(end, 1, 2)
    received = Channel(end).receive()
    if received is not None:
        setup: WorkerSetup = pickle.loads(received[0])
        setup.table, setup.trace = Table(*setup.table.shape, descriptors[0]), TraceFile(descriptors[1])
        setup.serve(end, number, parent, dies_with_parent=dies_with_parent)


def pickled_setup(setup: WorkerSetup) -> bytes:
    """Return what is sent to workers that start anew.

    Raises:
        ConfigError: it does not pickle.
    """
    try:
        return pickle.dumps(setup, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the run, or worker_init, cannot be sent to worker processes that start anew: {error}; replace lambdas"
            " and inner functions by functions of a module, or pass start_method='fork'"
        ) from error


def ended_all(workers: list[Worker], limit_s: float) -> bool:
    """Whether all workers have ended within the limit. One that the system keeps, in a read from a disk, does not."""
    until, pause_s = monotonic() + limit_s, 0.001
    while any(worker.is_alive() for worker in workers):
        if monotonic() > until:
            return False
        sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return True
