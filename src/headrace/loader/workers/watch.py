"""A thread that watches the workers while the loader waits: it reports what they do, and ends a wait that is too long.

The loader waits in short turns and knows its own time-out. But it cannot end a wait within a turn: for the rest of a
message that a worker wrote only a part of, or for memory of a worker that no longer answers.
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
from typing import Final, NamedTuple

from headrace.loader.reading import within

THREAD_NAME: Final = "headrace-watch"
"""The name of the thread. It holds no lock that a process forked meanwhile would need."""

_GRACE_S: Final = 3.0
"""How long a turn may last, which includes unpickling a message."""

_START_S: Final = 0.05
_KILL_S: Final = 2.0
_PAUSE_S: Final = 0.5
_FILLING: Final = bytes(1 << 16)


class Wait(NamedTuple):
    """A wait of the loader: for which worker, since when, and until when."""

    worker: int
    since: float
    until: float


class Watch:
    """Watches the workers of one worker set until ``stop``.

    Args:
        processes: the workers.
        report: returns the lines to print about a wait.
        every_s: how often they are printed.
        tick_s: how often the thread looks.
        pipe: the writing end of the pipe that messages come through; None if it is not known.
        once_started: called repeatedly until it returns True, which it does after all workers have started.
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
        """Watch the loader within this context, in which it waits for a worker."""
        now = monotonic()
        self._turned = now
        self._wait = Wait(worker, now, now + timeout_s)
        try:
            yield self._wait
        finally:
            self._wait = None

    def turn(self) -> None:
        """Note that the loader begins another turn of its wait."""
        self._turned = monotonic()

    def stop(self) -> None:
        """Let the thread end soon, without waiting for it."""
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
        """End a wait that does not end by itself: kill the workers, and complete a message that was cut off."""
        kill(self._processes, _KILL_S)
        if self._stopped.wait(_PAUSE_S) or self._wait is not wait or self._pipe is None:
            return
        # The reader gets its bytes, finds that they are no message, and finds that the workers are dead.
        with contextlib.suppress(OSError):
            os.set_blocking(self._pipe, False)
            while self._wait is wait and not self._stopped.wait(0.01):
                with contextlib.suppress(BlockingIOError):
                    os.write(self._pipe, _FILLING)


def is_alive(process: BaseProcess) -> bool:
    """Whether a process is alive.

    Python alone says that it is, after a handler of SIGCHLD in the program has waited for it; so the sentinel is asked.
    """
    return process.is_alive() and not connection.wait([process.sentinel], 0)


def kill(processes: Sequence[BaseProcess], limit_s: float) -> bool:
    """Terminate processes, then kill them; return whether all have ended within the limit.

    A process that the system keeps, such as in a read from a disk that does not answer, is left to the system.
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
    """Describe how a process ended, in words."""
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
