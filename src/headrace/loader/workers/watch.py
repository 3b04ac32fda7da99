"""A thread that looks on while the loader waits for its workers: it says what they do, and ends what waits too long.

The loader waits in short turns and knows its own time-out. What it cannot end by itself is a wait within a turn: for
the rest of a message of which a worker has written one half, or for memory that a worker holds which answers no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

THREAD_NAME: Final = "headrace-watch"
"""Of the thread; it holds no lock that a process forked meanwhile would miss."""

_GRACE_S: Final = 3.0
"""How much longer than a turn one may take: messages have to be unpickled."""

_START_S: Final = 0.05
_KILL_S: Final = 2.0
_PAUSE_S: Final = 0.5
_FILLING: Final = bytes(1 << 16)


class Wait(NamedTuple):
    """What the loader waits for: the worker, since when, and when that is too long."""

    worker: int
    since: float
    until: float


class Watch:
    """Looks after the workers of one worker set until ``stop``.

    Args:
        processes: the workers.
        report: what is printed of a wait: lines.
        every_s: how often.
        tick_s: how often the thread looks.
        pipe: the writing end of the pipe that messages come through, None where it is not known.
        once_started: called until it says that all workers have started, and it has done what it does then.
    """

    def __init__(
        self,
        processes: Sequence[BaseProcess],
        report: Callable[[Wait], str],
        *,
        every_s: float,
        tick_s: float,
        pipe: int | None,
        once_started: Callable[[], bool] | None = None,
    ) -> None:
        self._processes = processes
        self._report = report
        self._every_s = every_s
        self._tick_s = tick_s
        self._pipe = pipe
        self._once_started = once_started
        self._wait: Wait | None = None
        self._turned = 0.0
        self._stopped = Event()
        Thread(target=self._run, name=THREAD_NAME, daemon=True).start()

    @contextlib.contextmanager
    def waiting(self, worker: int, timeout_s: float) -> Iterator[Wait]:
        """While the loader is in here, it is looked after."""
        now = monotonic()
        self._turned = now
        self._wait = Wait(worker, now, now + timeout_s)
        try:
            yield self._wait
        finally:
            self._wait = None

    def turn(self) -> None:
        """The loader begins to wait for another turn."""
        self._turned = monotonic()

    def stop(self) -> None:
        """The thread ends soon; it is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        said: tuple[Wait | None, int] = (None, 0)
        while not self._stopped.wait(self._tick_s if self._once_started is None else min(self._tick_s, _START_S)):
            if self._once_started is not None and self._once_started():
                self._once_started = None
            wait = self._wait
            if wait is None:
                continue
            now = monotonic()
            times = int((now - wait.since) / self._every_s)
            if times > (said[1] if said[0] is wait else 0):
                said = (wait, times)
                within(self._every_s, partial(self._say, wait))
            is_stuck = now > self._turned + _GRACE_S
            if is_stuck and (now > wait.until or not all(is_alive(process) for process in self._processes)):
                self._free(wait)

    def _say(self, wait: Wait) -> None:
        print(self._report(wait), file=sys.stderr, flush=True)

    def _free(self, wait: Wait) -> None:
        """End a wait that does not end by itself: without workers nobody keeps it waiting but a message cut in two."""
        kill(self._processes, _KILL_S)
        if self._stopped.wait(_PAUSE_S) or self._wait is not wait or self._pipe is None:
            return
        # What comes after its first half is no message; who reads it finds that out, and finds the workers dead.
        with contextlib.suppress(OSError):
            os.set_blocking(self._pipe, False)
            while self._wait is wait and not self._stopped.wait(0.01):
                with contextlib.suppress(BlockingIOError):
                    os.write(self._pipe, _FILLING)


def within(limit_s: float, function: Callable[[], Any]) -> Any:
    """What a function gives within a time, else None: it may wait for a disk that does not answer."""
    found: list[Any] = []

    def call() -> None:
        with contextlib.suppress(Exception):
            found.append(function())

    thread = Thread(target=call, name="headrace-report", daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def is_alive(process: BaseProcess) -> bool:
    """Also where a handler of SIGCHLD waits for any child: of one whose end it has met Python says that it lives."""
    return process.is_alive() and not connection.wait([process.sentinel], 0)


def kill(processes: Sequence[BaseProcess], limit_s: float) -> bool:
    """End processes, gently and then for good; whether all have ended within the limit. Nothing is waited for longer.

    One that the system itself keeps, in a read of a disk that does not answer, is left to it.
    """
    for process in processes:
        if is_alive(process):
            process.terminate()
    _ended(processes, min(limit_s / 4, 0.2))
    for process in processes:
        if is_alive(process):
            process.kill()
    return _ended(processes, limit_s)


def _ended(processes: Sequence[BaseProcess], limit_s: float) -> bool:
    until = monotonic() + limit_s
    while any(is_alive(process) for process in processes):
        if monotonic() > until:
            return False
        sleep(0.005)
    return True


def how_ended(process: BaseProcess) -> str:
    """In words."""
    code = process.exitcode
    if code is None:
        return "has ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (as the system does when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
