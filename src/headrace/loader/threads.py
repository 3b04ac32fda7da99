"""Reading ahead in threads of this process, in order. One that hangs is an error in time: threads cannot be ended."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headrace.errors import WorkerError
from headrace.loader.workers_watch import within

if TYPE_CHECKING:
    from headrace.loader.reading import Reading

L = TypeVar("L")
T = TypeVar("T")
M = TypeVar("M")

_STOP_S: Final = 5.0
_DESCRIBE_S: Final = 5.0


def in_threads(
    reads: Sequence[Callable[[T], M]],
    work: Iterator[tuple[L, T]],
    reading: Reading,
    describe: Callable[[L], str],
) -> Iterator[tuple[L, M]]:
    """The label of each task with what a thread reads of it, in order; task n is read by ``reads[n % len(reads)]``.

    Tasks are not kept once they are read: memory that they bring along can be used again when what was read is gone.

    Raises:
        WorkerError: a task took longer than ``timeout_s``; says which, and where the thread is.
    """
    threads = [_Thread(read) for read in reads]
    ahead: deque[tuple[L, _Thread[T, M]]] = deque()
    try:
        # Each thread answers in order, and the threads take turns, so the answers are in order. A task is sent before
        # another answer is handed over: the threads read while the training loop has that.
        for thread in cycle(threads):
            later = next(work, None)
            if later is None:
                break
            thread.send(later[1])
            ahead.append((later[0], thread))
            del later
            if len(ahead) > len(threads) * (reading.prefetch or 1):
                label, first = ahead.popleft()
                yield label, first.receive(label, reading, describe)
        for label, first in ahead:
            yield label, first.receive(label, reading, describe)
    finally:
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join()


class _Thread(Generic[T, M]):
    """Reads tasks in the order in which they are sent."""

    def __init__(self, read: Callable[[T], M]) -> None:
        self._sent: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[M | None, BaseException | None]] = SimpleQueue()
        self._is_lost = False
        self._thread = Thread(target=self._work, args=(read,), name="headrace-read", daemon=True)
        self._thread.start()

    def send(self, task: T) -> None:
        self._sent.put((task,))

    def receive(self, label: Any, reading: Reading, describe: Callable[[Any], str]) -> M:
        found, error = self._next(label, reading, describe)
        if error is not None:
            raise error
        return found  # type: ignore[return-value]

    def _next(
        self, label: Any, reading: Reading, describe: Callable[[Any], str]
    ) -> tuple[M | None, BaseException | None]:
        since = monotonic()
        while True:
            waited_s = monotonic() - since
            try:
                return self._done.get(timeout=max(0.0, min(reading.timeout_s - waited_s, reading.watchdog_s)))
            except Empty:
                waited_s = monotonic() - since
            if waited_s >= reading.timeout_s:
                self._is_lost = True
                what = within(_DESCRIBE_S, lambda: describe(label)) or "samples"
                raise WorkerError(
                    f"nothing came for {reading.timeout_s:g} s from a thread that reads {what}, in\n{self._where()}\n"
                    "Raise timeout_s if samples take so long; worker processes, Reading(num_workers=2), are replaced"
                )
            within(_DESCRIBE_S, partial(_say, waited_s, describe, label))

    def _where(self) -> str:
        """The lines that the thread is in, the innermost call first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        found = [] if frame is None else traceback.extract_stack(frame)
        own = next((at for at, one in enumerate(found) if one.name == "_work"), -1)
        return "\n".join(f'  File "{one.filename}", line {one.lineno} in {one.name}' for one in found[:own:-1])

    def stop(self) -> None:
        """Have it end after what it is at; one that hangs ends by itself, or with the process."""
        with contextlib.suppress(Empty):
            while True:
                self._sent.get_nowait()
        self._sent.put(None)

    def join(self) -> None:
        """Wait for its end, within bounds."""
        # While the interpreter ends, other threads run no more.
        if not self._is_lost and not sys.is_finalizing():
            self._thread.join(_STOP_S)

    def _work(self, read: Callable[[T], M]) -> None:
        while (task := self._sent.get()) is not None:
            try:
                self._done.put((read(*task), None))
            except BaseException as error:  # raised again where the answer is received
                self._done.put((None, error))
            # The task may not live on in this thread: its memory would not be used again.
            del task


def _say(waited_s: float, describe: Callable[[Any], str], label: Any) -> None:
    print(f"headrace: waiting {waited_s:.0f} s for a thread that reads {describe(label)}", file=sys.stderr, flush=True)
