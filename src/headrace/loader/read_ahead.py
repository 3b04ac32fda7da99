"""Threads that read ahead by the plan: a few of them read, and as many as it takes wait for an object store.

Threads that take what is at hand slow each other down, and each has memory of its own. So one more is started only when
another one waits for the store, and one whose answer has come goes on when it is its turn:

    thread 1    reads, waits for the store ......... reads, waits for the store
    thread 2           reads, waits for the store ........... reads
    thread 3                  reads, waits for the store

Where all is in a cache on the disk, one thread reads it all. The first result comes before all else: nothing more is
asked for until it is there.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from queue import SimpleQueue
from threading import Event, Lock, Semaphore, Thread, current_thread
from typing import Any, Final, TypeVar

from headrace.io.threads import tell_of_waits
from headrace.loader.reading import GIVES_WAY_S, Reading, Reads

T = TypeVar("T")
M = TypeVar("M")

MOST_THREADS: Final = 32

_TURN_S: Final = 1.0


class _Turn:
    """A thread's turn to read. It is a courtesy and no lock.

    A thread that does not get its turn within a second goes on without it. So none waits for ever for another one that
    holds what it needs.
    """

    def __init__(self, free: Semaphore) -> None:
        self._free = free
        self._is_mine = False

    def take(self) -> None:
        self._is_mine = self._free.acquire(timeout=_TURN_S)

    def leave(self) -> None:
        if self._is_mine:
            self._is_mine = False
            self._free.release()


class _Slot:
    """Where the result of a task comes, and the thread that reads it."""

    def __init__(self) -> None:
        self.done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.thread: Thread | None = None


class ReadAhead(Reads[T, M]):
    """Tasks that several threads read at the same time.

    Args:
        read: reads a task. It says when it waits, see `headrace.io.readers.waiting`.
        num_reading: how many threads read at the same time. Up to `MOST_THREADS` are there while others wait.
    """

    def __init__(self, read: Callable[[T], M], num_reading: int) -> None:
        super().__init__()
        self._read = read
        self._num_reading = num_reading
        self._sent: SimpleQueue[tuple[T, _Slot] | None] = SimpleQueue()
        self._slots: deque[_Slot] = deque()
        self._next_slot = _Slot()
        self._free = Semaphore(num_reading)
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._num_waiting = 0
        self._has_result = False
        self._is_received = Event()
        self._is_over = False

    @property
    def num_done(self) -> int:
        """The number of results that can be handed over, since all before them can."""
        return sum(1 for _ in takewhile(lambda slot: slot.done.qsize(), self._slots))

    @property
    def is_ready(self) -> bool:
        """Whether the next result can be handed over."""
        return self._slots[0].done.qsize() > 0

    def send(self, task: T) -> None:
        """See `Reads.send`."""
        slot = _Slot()
        self._slots.append(slot)
        self._sent.put((task, slot))
        self._start_another()

    def receive(self, label: Any, reading: Reading, describe: Callable[[Any], str]) -> M:
        """See `Reads.receive`."""
        self._next_slot = self._slots.popleft()
        self._done = self._next_slot.done
        found = super().receive(label, reading, describe)
        self._is_received.set()
        return found

    def stop(self) -> None:
        """See `Reads.stop`."""
        self._is_over = True
        while self._sent.qsize():
            # A loop that was left may get here when the program ends, and by then the names of modules may be gone.
            try:  # noqa: SIM105
                self._sent.get_nowait()
            except Exception:  # a thread was faster
                pass
        for _ in self._threads:
            self._sent.put(None)

    @property
    def threads(self) -> Sequence[Thread]:
        """See `Reads.threads`."""
        return self._threads

    def _reader(self) -> Thread | None:
        return self._next_slot.thread

    def _start_another(self) -> None:
        """Start another thread, if tasks are left and fewer threads read than may."""
        with self._lock:
            num_reading = len(self._threads) - self._num_waiting
            most = MOST_THREADS if self._has_result else self._num_reading
            is_enough = num_reading >= self._num_reading or len(self._threads) >= most
            if self._is_over or is_enough or self._sent.empty():
                return
            thread = Thread(target=self._work, name="headrace-read", daemon=True)
            self._threads.append(thread)
            thread.start()

    @contextlib.contextmanager
    def _wait(self, turn: _Turn) -> Iterator[None]:
        """Let others read until the end of the block."""
        turn.leave()
        with self._lock:
            self._num_waiting += 1
        self._start_another()
        try:
            yield
        finally:
            with self._lock:
                self._num_waiting -= 1
            turn.take()

    def _work(self) -> None:
        turn = _Turn(self._free)
        tell_of_waits(partial(self._wait, turn))
        while (found := self._sent.get()) is not None:
            task, slot = found
            slot.thread = current_thread()
            turn.take()
            try:
                slot.done.put((self._read(task), None))
            except BaseException as error:  # raised again where the answer is received
                slot.done.put((None, error))
            turn.leave()
            if not self._has_result:
                self._has_result = True
                # The loop gets the first one before it has to share the interpreter lock with what is read next.
                self._is_received.wait(GIVES_WAY_S)
            # A task that lived on in this thread would keep its memory from being reused.
            del task, slot, found
