"""`TaskReader`: reads tasks, such as spans of a run, in order, as it was told, or as it chooses when a loop begins.

Work      what the tasks are            (`headrace.loader.reading`)
chosen    threads or worker processes   (`headrace.loader.choosing`)
  -> threads, or `WorkerPool`, or this loop itself
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import cycle, takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from headrace.loader import workers
from headrace.loader.choosing import ChosenReading, Obstacle, Surroundings, chosen, in_one_line, obstacle_to
from headrace.loader.reading import Pending, Reading, Work, in_threads, num_ahead, pins

if TYPE_CHECKING:
    from headrace.cache import Cache

T = TypeVar("T")
M = TypeVar("M")

_log = logging.getLogger("headrace")


class TaskReader(Generic[T, M]):
    """Reads the tasks of one stream at a time, in order; a new stream ends the one before.

    Args:
        work: what the tasks are.
        asked: how they are read; None decides when the first stream begins.
        cache: the cache through which they are read.

    Attributes:
        pins: whether what was made is pinned.

    Raises:
        ConfigError: batches are to be pinned, and cannot be.
    """

    def __init__(self, work: Work[T, M], asked: Reading | None, cache: Cache | None) -> None:
        self.cache = cache
        self._work = work
        self._asked = asked
        self.pins = pins(asked or Reading())
        self._chosen = None if asked is None else ChosenReading(asked, "the loader was told so")
        self._workers: workers.WorkerPool[T] | None = None
        self._sent: deque[Pending[T, M]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no workers and threads yet, as a new one.
        return {**self.__dict__, "_workers": None, "_sent": deque()}

    @property
    def reading(self) -> Reading:
        """How tasks are read; until the first stream begins, how they would be now."""
        return self._now().reading

    def describe(self) -> str:
        """Return where tasks are read, and why, in one line."""
        reading, why, _ = self._now()
        return f"{_words(reading)}, since {why}"

    def begin(self) -> Reading:
        """Decide for good. If samples are made here although other processes should, and could, a warning says why."""
        if self._chosen is None:
            self._chosen = self._choose()
            if self._chosen.advice:
                self._warn(self._chosen.why, self._chosen.advice)
        return self._chosen.reading

    def filled(self, tasks: Iterator[T]) -> Iterator[tuple[T, M]]:
        """Yield each task with what was made of it. Task n goes to thread or worker ``n % their number``."""
        reading = self.begin()
        return self._from_workers(tasks, reading) if reading.num_workers else self._filled_here(tasks, reading, 1)

    def _filled_here(self, tasks: Iterator[T], reading: Reading, num_readers: int) -> Iterator[tuple[T, M]]:
        readers = self._work.readers(reading.num_threads or num_readers, pin=self.pins)
        if not reading.num_threads:
            return ((task, read(task)) for task, read in zip(tasks, cycle(readers), strict=False))
        if self._work.in_order is not None and reading.ahead is not None:
            # A reader that keeps a state is that of one thread, and no other may take its tasks.
            prefetch = max(1, num_ahead(reading) // reading.num_threads)
            reading = msgspec.structs.replace(reading, ahead=None, prefetch=prefetch)
        self._sent = deque()
        return in_threads(readers, tasks, reading, self._work.describe, self._sent)

    def _from_workers(self, tasks: Iterator[T], reading: Reading) -> Iterator[tuple[T, M]]:
        if self._workers is None:
            self._workers = workers.WorkerPool(self._work, reading, self.cache, is_asked=self._asked is not None)
        pool, due = self._workers, workers.Due(tasks)
        obstacle = self._obstacle() if self._asked is None else None
        # A loop that was left ends this generator when the program does, and by then the globals may be gone.
        expected: type[workers.Unusable] = workers.Unusable
        if obstacle is None:
            try:
                made = pool.filled(due)
                # They are views of memory that is used again, so they are copied to pinned memory here.
                yield from ((task, self._work.pinned(one)) for task, one in made) if self.pins else made
                return
            except expected as unusable:
                pool.close(kill=True)
                if self._asked is not None:
                    raise unusable.error from unusable.error.__cause__
                obstacle = unusable.obstacle
        self._chosen = ChosenReading(self._work.here, in_one_line(obstacle.why))
        self._warn(self._chosen.why, obstacle.advice)
        # The tasks are those of as many readers as there were workers.
        yield from self._filled_here(due.left(), self._work.here, reading.num_workers)

    def _obstacle(self) -> Obstacle | None:
        """Return why workers cannot start now; None if they can."""
        now = self._choose()
        if not now.reading.num_workers:
            return Obstacle(now.why, now.advice)
        return obstacle_to(self._work.for_workers(), now.reading.starts_by)

    def _now(self) -> ChosenReading:
        return self._choose() if self._chosen is None else self._chosen

    def _choose(self) -> ChosenReading:
        work = self._work
        # Samples of tokens do not ask about the process.
        around = Surroundings.of_this_process() if work.traits.holds_interpreter else None
        return chosen(work.traits, work.here, around, in_order=work.in_order)

    def _warn(self, why: str, advice: str) -> None:
        _log.warning(
            "samples are read %s, since %s. Making them takes Python, which holds up the training loop, by a tenth of"
            " its launches in our measurements. To read in worker processes, %s; if this is meant, pass"
            " reading=Reading(num_threads=%d)",
            _words(self._work.here),
            why,
            advice,
            self._work.here.num_threads,
        )

    @property
    def num_ready(self) -> int:
        """How many results wait, since all before them were handed over or wait, too."""
        in_workers = 0 if self._workers is None else self._workers.num_ready
        return in_workers + sum(1 for _ in takewhile(Pending.done, self._sent))

    @property
    def num_replaced(self) -> int:
        """How often workers were replaced."""
        return 0 if self._workers is None else self._workers.num_replaced

    def close(self) -> None:
        """End worker processes; the next stream starts new ones. Threads end with their stream."""
        if self._workers is not None:
            self._workers.close()


def _words(reading: Reading) -> str:
    if reading.num_workers:
        plural = "es" if reading.num_workers > 1 else ""
        return f"ahead in {reading.num_workers} worker process{plural} ({reading.starts_by})"
    if reading.num_threads:
        return f"ahead in {reading.num_threads} thread{'s' if reading.num_threads > 1 else ''} of this process"
    return "by the training loop itself, when a batch is asked for"
