"""Worker processes that read tasks, such as spans of a run: torch's ``DataLoader``, with the plan as its sampler.

Messages come back in the order of the tasks, whichever worker was faster. What a worker raises comes back as it is, of
its own type. Workers that are gone or silent are replaced: new ones begin at the first task whose message was not
handed over, and since a task says all that is read, they make the same bytes.

    tasks   0 1 2 3 4 5 ...                      assigned in turn: worker 0 has 0, 2, 4, worker 1 has 1, 3, 5
            0 1 2 | 3 killed                     0, 1, 2 are handed over, and then a worker is gone
                  | 3 4 5 ...                    new workers: 3 is task 0 of worker 0
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.errors import StateError, WorkerError
from headrace.loader.workers.worker import RaisedError, Sent
from headrace.loader.workers.worker_set import END, DescribeSample, Lost, Stale, WorkerSet

if TYPE_CHECKING:
    from headrace.loader.reading import Reading

_log = logging.getLogger("headrace")

T = TypeVar("T")


class WorkerPool(Generic[T]):
    """The worker processes of one loader. They start with the first task, and stay if they are persistent.

    One stream of tasks is read at a time: a new one ends the one before.

    Args:
        reader_now: asked at each start of workers for what they are to have: a function that makes the message of a
            task. Each worker has its own copy, forked or pickled at that moment.
        reading: how many, how they start, and what becomes of lost ones.
        pin: whether messages are pinned.
        describe: a task in words, for errors and reports.
        describe_sample: the same of one sample of a task, by the address that `headrace.datasets.watched` was told.
        unrestorable: the name of the user's code that depends on what ran before, so that nothing can be read again.
        restarted: told the first task that new workers begin with, before ``reader_now`` is asked.
    """

    def __init__(
        self,
        reader_now: Callable[[], Callable[[T], Any]],
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
        """Every task with its message, in order. Task n goes to worker ``n % num_workers``, counted from a restart.

        Raises:
            WorkerError: workers ended, or gave nothing for ``timeout_s``, and are not replaced; names processes and
                samples.
            ConfigError: what goes to the workers does not pickle, and has to.
        """
        self._stream += 1
        mine = self._stream
        due = _Due(tasks)
        sent = self._begin(due)
        losses = 0
        try:
            while True:
                if mine != self._stream:
                    raise StateError("these samples are read no more: the loader was iterated anew")
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
        """The next message; or how workers were lost, in words."""
        if self._worker_set is None:
            raise StateError("these samples are read no more: the loader was closed")
        try:
            return self._worker_set.next(sent), ""
        except Lost as lost:
            return None, str(lost)
        except BaseException:
            # Also an interrupt from the keyboard: it may have come in the midst of a message, or of torch's books.
            self.close(kill=True)
            raise

    def _begin(self, due: _Due[T], *, careful: bool = False) -> deque[Sent]:
        if self._worker_set is not None and self._reading.persistent_workers:
            with contextlib.suppress(Stale):
                return self._assign(self._worker_set, due)
        # They are kept no longer, or one has died, or is busy with what nobody wants.
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
        """End all workers, and say where new ones go on.

        Raises:
            WorkerError: they are not replaced.
        """
        # Together: what they have read ahead would have to be taken apart, and is soon read again.
        self.close(kill=True)
        if self._unrestorable is not None:
            raise WorkerError(
                f"{loss}. Workers cannot be replaced: {self._unrestorable} is not marked @stateless, so that what it "
                "gave depends on what it had before; mark it if that is not so, or go on from the last checkpoint"
            )
        at = f"; next come {self._describe(due.first[0])}" if due.first else ""
        if self._reading.on_lost_worker == "raise":
            raise WorkerError(f"{loss}{at}. on_lost_worker='replace' has new workers go on there")
        if losses > self._reading.max_replacements:
            raise WorkerError(
                f"{loss}{at}. Workers were replaced {losses - 1} times in a row and came no further: look at that "
                "sample, or give workers more memory or time"
            )
        _log.warning("%s%s. New workers go on there (%d)", loss, at, losses)
        if due.first and self._restarted is not None:
            self._restarted(due.first[0])

    def close(self, *, kill: bool = False) -> None:
        """End the processes, within seconds; the next stream starts new ones. ``kill``: whatever they are at."""
        worker_set, self._worker_set = self._worker_set, None
        if worker_set is not None:
            worker_set.end(kill_first=kill)

    def __del__(self) -> None:
        if getattr(self, "_worker_set", None) is not None:
            self.close()


class _Due(Generic[T]):
    """The tasks of a stream. Each is handed out again to whoever begins, until its message is handed over."""

    def __init__(self, tasks: Iterator[T]) -> None:
        self._tasks = tasks
        self._failed: Exception | None = None
        self.first: deque[T] = deque()
        """Those that were handed out, and not handed over."""

    def __iter__(self) -> Iterator[T]:
        """All that are due, from the first one on; raises what the planning of tasks raised, each time."""
        yield from tuple(self.first)
        try:
            for task in self._tasks:
                self.first.append(task)
                yield task
        except Exception as error:  # only once: an iterator that has raised ends without a word
            self._failed = error
        if self._failed is not None:
            raise self._failed

    def handed_over(self) -> T:
        """The first one, which is due no more."""
        return self.first.popleft()


_living: weakref.WeakSet[WorkerPool[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Before torch and multiprocessing do, since they wait for workers that do not end."""
    for workers in list(_living):
        workers.close(kill=True)
