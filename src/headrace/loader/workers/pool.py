"""A pool of worker processes that read tasks, such as spans of a run.

Messages come back in the order of the tasks, whichever worker was faster. An error in a worker is raised here, with its
own type. Workers that died or hang are replaced: new ones begin at the first task whose message was not yielded. Since
a task says all that is read, they make the same bytes.

    tasks   0 1 2 3 4 5 ...                      assigned in turn: worker 0 has 0, 2, 4, worker 1 has 1, 3, 5
            0 1 2 | 3 killed                     0, 1 and 2 are yielded, then a worker is lost
                  | 3 4 5 ...                    new workers: 3 is task 0 of worker 0

If workers are forks, they and those that replace them come from one server, and all have what the program had set when
that was forked. The pool makes another server when a loop begins, or when the server is lost.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import pickle
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import torch

from headrace.errors import ConfigError, StateError, WorkerError
from headrace.loader.choosing import Obstacle
from headrace.loader.reading import DESCRIBE_S, Reading, Work, check_process, unforkable, within
from headrace.loader.workers.messages import BlockTable, Message, dumped
from headrace.loader.workers.server import (
    ForkServer,
    NotProved,
    Worker,
    ended_all,
    not_in_forks,
    pickled_setup,
    spawned,
)
from headrace.loader.workers.worker import (
    RaisedError,
    State,
    Table,
    TraceFile,
    WorkerSetup,
    WorkerStatus,
)

if TYPE_CHECKING:
    from headrace.cache import Cache

_TURN_S: Final = 1.0
"""How soon it is noticed that a worker has ended whose socket another process holds open."""

_IDLE_S: Final = 5.0
"""How long workers may take to finish with an outdated stream."""

_FINISH_S: Final = 1.0
_END_S: Final = 5.0
_TRACE_S: Final = 1.0

_FIRST_LIMITS: Final = (0.1, 0.3, 1.0)
"""The parts of ``timeout_s`` in which a new server must answer, and its first task must be made; then the next server,
and the last one."""

_FORK_ADVICE: Final = (
    ". It was forked beside {}: a lock that was held there at that moment is never released in a fork. If it waits for"
    " such a lock, pass Reading(start_method='spawn')"
)

_starts: Final = itertools.count()
_log = logging.getLogger("headrace")


class Lost(Exception):  # noqa: N818 -- never seen by users
    """Workers have ended or hang; the message says which, and what they were doing."""


class Unusable(Exception):  # noqa: N818 -- never seen by users
    """Workers cannot be used. If nobody asked for them, the tasks are read in another way; else ``error`` is raised."""

    def __init__(self, obstacle: Obstacle, error: Exception) -> None:
        super().__init__(obstacle, error)
        self.obstacle = obstacle
        self.error = error


class Wait(NamedTuple):
    """A wait of the loader: for which worker, since when, and until when."""

    worker: int
    since: float
    until: float


T = TypeVar("T")


class Due(Generic[T]):
    """The tasks of a stream whose messages were not yielded. New workers are given again what others had.

    Attributes:
        planned: those that are known by now, the next one first.
        failed: what the planning of tasks raised, which is raised when the messages before it were yielded.
    """

    def __init__(self, tasks: Iterator[T]) -> None:
        self._tasks = tasks
        self.planned: deque[T] = deque()
        self.failed: Exception | None = None

    def has(self, at: int) -> bool:
        """Return whether there is a task after ``at`` others."""
        while len(self.planned) <= at and self.failed is None:
            try:
                self.planned.append(next(self._tasks))
            except StopIteration:
                break
            except Exception as error:  # kept, since an iterator that has raised just ends when it is asked again
                self.failed = error
        return len(self.planned) > at

    def left(self) -> Iterator[T]:
        """Yield all tasks, and keep none of them."""
        while self.has(0):
            yield self.planned.popleft()
        if self.failed is not None:
            raise self.failed


def _not_started(why: str, error: Exception) -> Unusable:
    what = f"worker processes could not start: {why}"
    return Unusable(Obstacle(what, "look at the error of reading=Reading(num_workers=2)"), error)


class WorkerPool(Generic[T]):
    """The worker processes of one loader. They start with the first task of a stream, and end with it; or they stay.

    One stream of tasks is read at a time; a new one ends the one before. Tasks are numbered through all streams. Task n
    goes to worker ``n % num_workers``.

    Args:
        work: what the tasks are.
        reading: the number of workers, how they start, and what happens when they are lost.
        cache: the cache through which the workers read, whose ``stats`` count what they read.
        is_asked: whether somebody asked for workers, so that they are tried again where the first ones end at once.

    Attributes:
        workers: the processes; empty if there are none now.
        server: the process that forks them; None if there is none.
        num_replaced: how often workers were replaced.
    """

    def __init__(
        self, work: Work[T, Any], reading: Reading, cache: Cache | None = None, *, is_asked: bool = True
    ) -> None:
        self.workers: list[Worker] = []
        self.server: ForkServer | None = None
        self.num_replaced = 0
        self._work = work
        self._reading = reading
        self._num_workers = reading.num_workers
        self._cache = cache
        self._is_asked = is_asked
        self._has_told = False
        self._owner = 0
        """The process that has started the workers; 0 if there are none."""
        self._stream = 0
        self._due: Due[T] = Due(iter(()))
        self._first = self._next = self._num_sent = self._prefetch = 0
        self._is_renewed = False
        self._wait: Wait | None = None
        self._stop_counting: Callable[[], None] | None = None

    def filled(self, due: Due[T]) -> Iterator[tuple[T, Any]]:
        """Yield every task with its message, in order.

        Raises:
            WorkerError: workers ended, or sent nothing for ``timeout_s``, and are not replaced; the message names
                processes and samples.
            Unusable: workers cannot be started, or hang before they have done anything; what is due can be read in
                another way.
        """
        self._stream += 1
        mine, losses, num_unproved, is_begun = self._stream, 0, 0, False
        if self._owner:
            check_process(self._owner)
            if not self._reading.persistent_workers or not self._is_idle():
                self.close(kill=True)
        try:
            while True:
                if mine != self._stream:
                    raise StateError("this iterator is outdated: the loader was iterated anew; use the newest iterator")
                if is_begun and not self._owner:
                    raise StateError("the loader was closed while it was iterated: iterate it anew")
                if self._owner:
                    check_process(self._owner)
                try:
                    if not self._owner:
                        self._start(_FIRST_LIMITS[num_unproved])
                    if not is_begun:
                        self._begin(due, is_renewed=losses + num_unproved > 0, is_careful=losses > 1)
                        is_begun = True
                    found = self._next_found()
                except NotProved as hangs:
                    num_unproved, is_begun = num_unproved + 1, False
                    self._doubt(str(hangs), num_unproved)
                    continue
                except Lost as lost:
                    losses, is_begun = losses + 1, False
                    self._replace(str(lost), losses)
                    continue
                except BaseException:
                    # This includes KeyboardInterrupt, after which nobody may wait for the rest of what was sent.
                    self.close(kill=True)
                    raise
                if found is None:
                    return
                if isinstance(found[1], RaisedError):
                    raise found[1].again()
                losses = num_unproved = 0
                yield found
        finally:
            # A loop that was left gets here when the program ends, without workers, and by then `os` may be gone.
            ends = not self._reading.persistent_workers and mine == self._stream
            if ends and self._owner and self._owner == os.getpid():
                self.close()

    def _start(self, first_limit: float) -> None:
        """Start workers; ``first_limit`` is the part of ``timeout_s`` in which forks must prove themselves.

        Raises:
            Unusable: they cannot be started, or what goes to them has to pickle, and does not.
            NotProved: forks of this process hang.
        """
        reading, cache = self._reading, self._cache
        self._table = Table(self._num_workers, 0 if cache is None else len(cache.own_counts()))
        self._trace = TraceFile()
        self._owner = os.getpid()
        self._num_started = 0
        _living.add(self)
        setup = WorkerSetup(
            read=self._work.for_workers(),
            num_workers=self._num_workers,
            table=self._table,
            trace=self._trace,
            init=reading.worker_init,
            words=self._work.words,
            counts=None if cache is None else cache.own_counts,
            seed=torch.initial_seed() + self._num_workers * next(_starts),
        )
        self._first_limit_s, self._lacking = reading.timeout_s, ""
        method = reading.starts_by
        try:
            if method == "fork":
                self._lacking = ", ".join(not_in_forks())
                if reading.on_lost_worker == "replace":
                    self._first_limit_s *= first_limit
                self.server = ForkServer(setup, self._first_limit_s)
                self._start_one: Callable[[int], Worker] = self.server.start
            else:
                self._start_one = partial(spawned, setup, pickled_setup(setup))
            self._start_workers()
        except (ConfigError, WorkerError) as error:
            raise _not_started(str(error), error) from error
        beside = f", beside {self._lacking}, which forks lack" if self._lacking else ""
        _log.info("%d worker processes start by %s%s", self._num_workers, method, beside)
        if self.server is None and reading.worker_init is None and not self._has_told:
            self._has_told = True
            why = f"since {unforkable()}" if reading.start_method is None and unforkable() else "by 'spawn'"
            _log.warning(
                "worker processes start anew, %s: they have what importing its modules sets, but not what the program"
                " set while it ran. Set that in each worker with Reading(worker_init=FUNCTION)",
                why,
            )

    def _start_workers(self) -> None:
        self._blocks = BlockTable(self._num_workers)
        for worker in range(self._num_workers):
            self._table.write(worker, State.STARTING, -1)
            self.workers.append(self._start_one(self._num_started))
            self._num_started += 1
        if self._cache is not None:
            self._stop_counting = self._cache.follow(self._table.counts)

    def _begin(self, due: Due[T], *, is_renewed: bool, is_careful: bool) -> None:
        """Send the first tasks to the workers.

        Args:
            due: the tasks.
            is_renewed: whether these workers go on with a stream that others began.
            is_careful: give a worker each task only after the message of the one before was received, so that a task
                which ends or blocks the worker does not take other tasks with it.
        """
        self._first, self._num_sent = self._next, 0
        self._due, self._is_renewed = due, is_renewed
        self._prefetch = 1 if is_careful else self._reading.prefetch or 2
        self._send()

    def _send(self) -> None:
        """Send workers the tasks that they may have by now."""
        while self._num_sent < self._num_workers * self._prefetch and self._due.has(self._num_sent):
            number, task = self._next + self._num_sent, self._due.planned[self._num_sent]
            if self._is_renewed and number < self._first + self._num_workers:
                task = self._work.renewed(task)
            self._num_sent += 1
            message = dumped((number, task, self._blocks.offer(number)))
            self.workers[number % self._num_workers].channel.post(message)

    def _is_idle(self) -> bool:
        """Whether all workers live and are done with a stream that was left, for which they have some seconds."""
        until = monotonic() + _IDLE_S
        self._table.first[0] = self._next + self._num_sent
        while self._num_sent:
            try:
                received = self.workers[self._next % self._num_workers].channel.receive(max(0.0, until - monotonic()))
            except EOFError:
                return False
            if received is None:
                return False
            message: Message = pickle.loads(received[0])
            self._blocks.received(message.number, message.num_bytes, received[1])
            self._next, self._num_sent = self._next + 1, self._num_sent - 1
        return all(worker.is_alive() for worker in self.workers)

    def _next_found(self) -> tuple[T, Any] | None:
        """Return the first task that is due, and what came for it; None if no tasks are left.

        Raises:
            Lost: nothing comes.
            NotProved: nothing comes, and these are forks that have done nothing yet.
            Unusable: the worker could not be set up; the task is still due.
            WorkerError: this process cannot receive messages.
        """
        if not self._num_sent:
            if self._due.failed is not None:
                raise self._due.failed
            return None
        since = monotonic()
        self._wait = wait = Wait(self._next % self._num_workers, since, since + self._first_limit_s)
        try:
            data, descriptors = self._received(wait)
        finally:
            self._wait = None
        self._first_limit_s = self._reading.timeout_s
        message: Message = pickle.loads(data)
        found = message.read(self._blocks, descriptors)
        if isinstance(found, RaisedError) and found.in_setup:
            raise _not_started(found.text, found.again())
        task = self._due.planned.popleft()
        self._next, self._num_sent = self._next + 1, self._num_sent - 1
        self._send()
        return task, found

    def _received(self, wait: Wait) -> tuple[bytearray, list[int]]:
        reading, num_said = self._reading, 0
        worker = self.workers[wait.worker]
        turn_s = min(_TURN_S, max(0.02, min(reading.watchdog_s, reading.timeout_s) / 4))
        while True:
            try:
                received = worker.channel.receive(turn_s)
                if received is None and not worker.is_alive():
                    received = worker.channel.receive(0)  # sent at its end
                    if received is None:
                        raise EOFError
            except EOFError:
                raise Lost(self._who(wait.worker)) from None
            if received is not None:
                return received
            now = monotonic()
            if now >= wait.until:
                is_first = wait.until - wait.since < reading.timeout_s
                raise (NotProved if is_first else Lost)(self._silent(wait))
            if (times := int((now - wait.since) / reading.watchdog_s)) > num_said:
                num_said = times
                within(reading.watchdog_s, partial(self._say, wait))

    def _say(self, wait: Wait) -> None:
        lines = [f"headrace: waiting {monotonic() - wait.since:.0f} s for worker {wait.worker}"]
        lines += [f"  worker {at} (process {one.pid}): {self._state(at)}" for at, one in enumerate(self.workers)]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _state(self, number: int) -> str:
        """Describe how long a worker has been doing what; or how it has ended, and what it was doing then."""
        worker, row = self.workers[number], self._table.row(number)
        since = f"{row.since_s:.0f} s" if worker.is_alive() else worker.how_ended
        if row.state is State.READING:
            return f"{since} in read of {self._task(row)}"
        return f"{since} {'in its start' if row.state is State.STARTING else 'without work'}"

    def _task(self, row: WorkerStatus) -> str:
        at = row.task - self._next
        if not 0 <= at < self._num_sent:
            return "samples that are no longer needed"
        task = self._due.planned[at]
        return self._work.describe(task) if row.sample is None else self._work.describe_sample(task, row.sample)

    def _who(self, worker: int) -> str:
        """Describe which workers have ended, and what they were doing."""
        until = monotonic() + _TURN_S
        while not (dead := [at for at, one in enumerate(self.workers) if not one.is_alive()]):
            # A closed connection can be seen before the end of its process.
            if monotonic() > until:
                return f"worker {worker} (process {self.workers[worker].pid}) has closed its socket"
            sleep(0.01)
        if self.server is not None and self.server.is_lost:
            return f"the server that forks workers (process {self.server.pid}) has ended or hangs, and they with it"
        found = []
        for at in dead:
            how = within(DESCRIBE_S, partial(self._state, at)) or self.workers[at].how_ended
            found.append(f"worker {at} (process {self.workers[at].pid}) {how}")
        return "; ".join(found)

    def _silent(self, wait: Wait) -> str:
        """Describe what a worker is doing that sends nothing."""
        worker = self.workers[wait.worker]
        doing = within(DESCRIBE_S, partial(self._state, wait.worker)) or "working"
        lines = self._lines(worker, wait.worker)
        where = f", in\n{lines}\n" if lines else ". "
        limit_s = wait.until - wait.since
        return (
            f"worker {wait.worker} (process {worker.pid}) sent nothing for {limit_s:g} s: {doing}{where}"
            f"Raise timeout_s if samples take that long{_FORK_ADVICE.format(self._lacking) if self._lacking else ''}"
        )

    def _lines(self, worker: Worker, number: int) -> str:
        """Return the traceback of a process that hangs, which it writes itself; empty if it is stopped."""
        if not hasattr(signal, "SIGUSR1") or self._table.row(number).state is State.STARTING:
            return ""
        try:
            os.kill(worker.pid, signal.SIGUSR1)
        except ProcessLookupError:  # it has ended meanwhile, and other code has waited for it
            return ""
        until, size = monotonic() + _TRACE_S, -1
        while monotonic() < until and (size <= 0 or self._trace.size() != size):
            size = self._trace.size()
            sleep(0.02)
        return self._trace.current_thread()

    def _doubt(self, why: str, num_unproved: int) -> None:
        """Give up forks that hang before they have done anything; raise Unusable if that has happened too often."""
        self.close(kill=True)
        if num_unproved < len(_FIRST_LIMITS):
            _log.warning("%s. Workers are forked anew, from the program as it is now (%d)", why, num_unproved)
            return
        what = f"processes forked from this program hang, {num_unproved} times in a row: {why}"
        raise Unusable(
            Obstacle(what, "pass reading=Reading(num_workers=2, start_method='spawn')"),
            WorkerError(f"{what}. Pass Reading(start_method='spawn'), or num_workers=0"),
        )

    def _replace(self, loss: str, losses: int) -> None:
        """Replace all workers, with a warning. All, since keeping what some have read ahead would be complicated.

        Raises:
            WorkerError: the workers are not replaced.
            Unusable: others cannot start.
        """
        ended = [at for at, worker in enumerate(self.workers) if not worker.is_alive()]
        if not self._is_asked and any(self._table.row(worker).state is State.STARTING for worker in ended):
            raise _not_started(loss, WorkerError(loss))
        planned = self._due.planned
        at = f"; next come {self._work.describe(planned[0])}" if planned else ""
        reason, unrestorable = "", self._work.traits.unrestorable
        if unrestorable is not None:
            reason = (
                f". Workers cannot be replaced: {unrestorable} is not marked @stateless, so its results may"
                " depend on what ran before; mark it if they do not, or resume from the last checkpoint"
            )
        elif self._reading.on_lost_worker == "raise":
            reason = f"{at}. With on_lost_worker='replace' new workers continue there"
        elif losses > self._reading.max_replacements:
            reason = (
                f"{at}. Workers were replaced {losses - 1} times in a row and got no further: look at that "
                "sample, or give workers more memory or time"
            )
        if reason:
            self.close(kill=True)
            raise WorkerError(f"{loss}{reason}") from None
        is_server_lost = self.server is not None and self.server.is_lost
        anew = ", forked from the program as it is now, which may have changed globals since," if is_server_lost else ""
        _log.warning("%s%s. New workers%s continue there (%d)", loss, at, anew, losses)
        self.num_replaced += 1
        if is_server_lost:
            self.close(kill=True)
            return
        self._end_workers()
        self._table.clear()
        try:
            self._start_workers()
        except WorkerError as error:
            raise _not_started(str(error), error) from error

    @property
    def num_ready(self) -> int:
        """How many messages of the newest stream wait."""
        rows = [self._table.row(worker) for worker in range(len(self.workers))]
        done = [row.task if row.state is State.WAITING else row.task - self._num_workers for row in rows]
        numbers = range(self._next, self._next + self._num_sent)
        return sum(number <= done[number % self._num_workers] for number in numbers)

    def close(self, *, kill: bool = False) -> None:
        """End the processes within seconds; the next stream starts new ones. ``kill`` interrupts current tasks."""
        owner, self._owner = self._owner, 0
        if owner == os.getpid():  # else this is a copy in a forked process
            if not kill:
                for worker in self.workers:
                    worker.channel.close()
                ended_all(self.workers, _FINISH_S)
            self._end_workers()
            if self.server is not None:
                self.server.end()
            for descriptor in (self._table.descriptor, self._trace.descriptor):
                os.close(descriptor)
        self.workers, self.server, self._num_sent = [], None, 0

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.kill()
        ended_all(self.workers, _END_S)
        for worker in self.workers:
            worker.channel.close()
        self.workers.clear()
        if self._stop_counting is not None:
            self._stop_counting()
            self._stop_counting = None

    def __del__(self) -> None:
        if getattr(self, "_owner", 0):
            self.close()


_living: weakref.WeakSet[WorkerPool[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all workers before multiprocessing tries to, since it waits for workers that do not end."""
    for workers in list(_living):
        workers.close(kill=True)
