"""A thread that watches the workers while the loader waits: it reports what they do, and ends a wait that is too long.

The loader waits in short turns and knows its own time-out. But it cannot end a wait within a turn: for the rest of a
message that a worker wrote only a part of, or for memory of a worker that no longer answers.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from time import monotonic
from typing import Final, NamedTuple

from headrace.loader.reading import within
from headrace.loader.workers.processes import WATCH_THREAD, is_alive, kill

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
        Thread(target=self._run, name=WATCH_THREAD, daemon=True).start()

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
