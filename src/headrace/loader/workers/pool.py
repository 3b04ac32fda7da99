"""A pool of worker processes that read tasks, such as spans of a run: torch's ``DataLoader`` with the plan as sampler.

Messages come back in the order of the tasks, whichever worker was faster. An error in a worker is raised here, with its
own type. Workers that died or hang are replaced: new ones begin at the first task whose message was not yielded. Since
a task says all that is read, they make the same bytes.

    tasks   0 1 2 3 4 5 ...                      assigned in turn: worker 0 has 0, 2, 4, worker 1 has 1, 3, 5
            0 1 2 | 3 killed                     0, 1 and 2 are yielded, then a worker is lost
                  | 3 4 5 ...                    new workers: 3 is task 0 of worker 0
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from headrace.datasets.sample_watch import Tell
from headrace.errors import StateError, WorkerError
from headrace.loader.reading import Reading
from headrace.loader.workers.worker import RaisedError, Sent
from headrace.loader.workers.worker_set import END, DescribeSample, Lost, Stale, WorkerSet

_log = logging.getLogger("headrace")

T = TypeVar("T")


class WorkerPool(Generic[T]):
    """The worker processes of one loader. They start with the first task, and stay if they are persistent.

    One stream of tasks is read at a time; a new one ends the one before.

    Args:
        reader_now: called at each start of workers. It returns the function that makes the message of a task, and tells
            the address of each sample before it makes it; each worker gets its own copy, forked or pickled at that
            moment.
        reading: the number of workers, how they start, and what happens when they are lost.
        pin: whether messages are pinned.
        describe: describes a task in words, for errors and reports.
        describe_sample: describes one sample of a task, by the address that the reader told.
        unrestorable: the name of a hook whose results depend on what ran before, so that nothing can be read again.
        restarted: called with the first task that new workers begin with, before ``reader_now``.
    """

    def __init__(
        self,
        reader_now: Callable[[], Callable[[T, Tell], Any]],
        reading: Reading,
        *,
        pin: bool,
        describe: Callable[[T], str],
        describe_sample: DescribeSample | None = None,
        unrestorable: str | None = None,
        restarted: Callable[[T], None] | None = None,
    ) -> None:
        self._reader_now = reader_now
        self._reading = reading
        self._pin = pin
        self._describe = describe
        self._describe_sample = describe_sample
        self._unrestorable = unrestorable
        self._restarted = restarted
        self._worker_set: WorkerSet | None = None
        self._stream = 0

    def filled(self, tasks: Iterator[T]) -> Iterator[tuple[T, Any]]:
        """Yield every task with its message, in order. Task n since a restart goes to worker ``n % num_workers``.

        Raises:
            WorkerError: workers ended, or sent nothing for ``timeout_s``, and are not replaced; the message names
                processes and samples.
            ConfigError: what goes to the workers has to pickle, and does not.
        """
        self._stream += 1
        mine = self._stream
        due = _Due(tasks)
        sent = self._begin(due)
        losses = 0
        try:
            while True:
                if mine != self._stream:
                    raise StateError("this iterator is outdated: the loader was iterated anew; use the newest iterator")
                message, loss = self._next(sent)
                if loss:
                    losses += 1
                    self._give_up(due, loss, losses)
                    sent = self._begin(due, careful=losses > 1)
                    continue
                if message is END:
                    break
                sent.popleft()
                task = due.handed_over()
                losses = 0
                if isinstance(message, RaisedError):
                    raise message.again()
                yield task, message
        finally:
            if not self._reading.persistent_workers and mine == self._stream:
                self.close()

    def _next(self, sent: deque[Sent]) -> tuple[Any, str]:
        """Return the next message and an empty text; or None, and how workers were lost, in words."""
        if self._worker_set is None:
            raise StateError("the loader was closed while it was iterated: iterate it anew")
        try:
            return self._worker_set.next(sent), ""
        except Lost as lost:
            return None, str(lost)
        except BaseException:
            # This includes KeyboardInterrupt, which may leave half a message in the pipe, or torch's state unclear.
            self.close(kill=True)
            raise

    def _begin(self, due: _Due[T], *, careful: bool = False) -> deque[Sent]:
        if self._worker_set is not None and self._reading.persistent_workers:
            with contextlib.suppress(Stale):
                return self._assign(self._worker_set, due)
        # The workers are not persistent, or one has died, or is still busy with an outdated task.
        self.close(kill=self._worker_set is not None)
        worker_set = self._worker_set = WorkerSet(
            self._reader_now(),
            self._reading,
            pin=self._pin,
            careful=careful,
            describe=self._describe,
            describe_sample=self._describe_sample,
        )
        _living.add(self)
        return self._assign(worker_set, due)

    def _assign(self, worker_set: WorkerSet, due: _Due[T]) -> deque[Sent]:
        try:
            return worker_set.begin(iter(due))
        except BaseException:
            self.close(kill=True)
            raise

    def _give_up(self, due: _Due[T], loss: str, losses: int) -> None:
        """End all workers, and warn where new ones continue.

        Raises:
            WorkerError: the workers are not replaced.
        """
        # All of them: keeping what the others have read ahead would be complicated, and it is soon read again.
        self.close(kill=True)
        if self._unrestorable is not None:
            raise WorkerError(
                f"{loss}. Workers cannot be replaced: {self._unrestorable} is not marked @stateless, so its results may"
                " depend on what ran before; mark it if they do not, or resume from the last checkpoint"
            )
        at = f"; next come {self._describe(due.first[0])}" if due.first else ""
        if self._reading.on_lost_worker == "raise":
            raise WorkerError(f"{loss}{at}. With on_lost_worker='replace' new workers continue there")
        if losses > self._reading.max_replacements:
            raise WorkerError(
                f"{loss}{at}. Workers were replaced {losses - 1} times in a row and got no further: look at that "
                "sample, or give workers more memory or time"
            )
        _log.warning("%s%s. New workers continue there (%d)", loss, at, losses)
        if due.first and self._restarted is not None:
            self._restarted(due.first[0])

    def close(self, *, kill: bool = False) -> None:
        """End the processes within seconds; the next stream starts new ones. ``kill`` interrupts current tasks."""
        worker_set, self._worker_set = self._worker_set, None
        if worker_set is not None:
            worker_set.end(kill_first=kill)

    def __del__(self) -> None:
        if getattr(self, "_worker_set", None) is not None:
            self.close()


class _Due(Generic[T]):
    """The tasks of a stream. Each is given to every new set of workers until its message was yielded."""

    def __init__(self, tasks: Iterator[T]) -> None:
        self._tasks = tasks
        self._failed: Exception | None = None
        self.first: deque[T] = deque()
        """Tasks that were given to workers, and whose messages were not yielded yet."""

    def __iter__(self) -> Iterator[T]:
        """Yield all tasks that are due, from the first one on; raise what the planning of tasks raised, each time."""
        yield from tuple(self.first)
        try:
            for task in self._tasks:
                self.first.append(task)
                yield task
        except Exception as error:  # kept, since an iterator that has raised just ends when it is asked again
            self._failed = error
        if self._failed is not None:
            raise self._failed

    def handed_over(self) -> T:
        """Remove the first task, whose message is about to be yielded, and return it."""
        return self.first.popleft()


_living: weakref.WeakSet[WorkerPool[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all workers before torch and multiprocessing try to, since these wait for workers that do not end."""
    for workers in list(_living):
        workers.close(kill=True)
