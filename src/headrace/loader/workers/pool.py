"""A pool of worker processes that read tasks, such as spans of a run: torch's ``DataLoader`` with the plan as sampler.

Messages come back in the order of the tasks, whichever worker was faster. An error in a worker is raised here, with its
own type. Workers that died or hang are replaced: new ones begin at the first task whose message was not yielded. Since
a task says all that is read, they make the same bytes.

    tasks   0 1 2 3 4 5 ...                      assigned in turn: worker 0 has 0, 2, 4, worker 1 has 1, 3, 5
            0 1 2 | 3 killed                     0, 1 and 2 are yielded, then a worker is lost
                  | 3 4 5 ...                    new workers: 3 is task 0 of worker 0

A `WorkerSet` are the workers from one start to its end. The pool makes another set when workers are lost.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import active_children, util
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headrace.errors import ConfigError, StateError, WorkerError
from headrace.loader.choosing import Instead, Obstacle
from headrace.loader.reading import DESCRIBE_S, Queue, Reading, check_process, within
from headrace.loader.workers.blocks import BlockTable
from headrace.loader.workers.messages import PlacedRows
from headrace.loader.workers.processes import (
    WATCH_THREAD,
    TaskSampler,
    context_of,
    data_loader,
    disown,
    forget,
    how_ended,
    is_alive,
    kill,
    names_of,
    not_in_forks,
    pipe_of,
    shut_down,
    started_by,
    unlock_end,
)
from headrace.loader.workers.user_globals import Globals
from headrace.loader.workers.watch import Wait, Watch
from headrace.loader.workers.worker import (
    LostMessage,
    RaisedError,
    ReadTask,
    Sent,
    State,
    Table,
    TraceFile,
    WorkerSetup,
    WorkerStatus,
)

if TYPE_CHECKING:
    from headrace.cache import Cache

DescribeSample = Callable[[Any, int], str]
"""Describes a sample in words, by its task and its address."""


class Reporter:
    """Describes what workers are doing. It refers to nothing that keeps them alive."""

    def __init__(
        self,
        table: Table,
        processes: list[BaseProcess],
        sent_now: Callable[[], Sequence[Sent]],
        describe: Callable[[Any], str],
        describe_sample: DescribeSample | None,
    ) -> None:
        self._table = table
        self._processes = processes
        self._sent_now = sent_now
        self._describe = describe
        self._describe_sample = describe_sample

    def __call__(self, wait: Wait) -> str:
        """Return the report of a wait: for which worker the loader waits, and what each worker is doing."""
        waited = f"headrace: waiting {monotonic() - wait.since:.0f} s for worker {wait.worker}"
        lines = [
            f"  worker {at} (process {process.pid}): {self.doing(at) if is_alive(process) else self.ended(at)}"
            for at, process in enumerate(self._processes)
        ]
        return "\n".join([waited, *lines])

    def doing(self, worker: int) -> str:
        """Describe what a worker is doing, and since when."""
        row = self._table.row(worker)
        if row.state is State.STARTING:
            return "still starting"
        if row.state is State.WAITING:
            return f"{row.since_s:.0f} s without work"
        return f"{row.since_s:.0f} s in read of {self._task(row)}"

    def ended(self, worker: int) -> str:
        """Describe how a worker has ended, and what it was doing then."""
        row = self._table.row(worker)
        how = how_ended(self._processes[worker])
        if row.state is State.STARTING:
            return f"{how} while it started"
        if row.state is State.WAITING:
            return f"{how} when it had done its work"
        return f"{how} in read of {self._task(row)}"

    def _task(self, row: WorkerStatus) -> str:
        task = next((one.task for one in list(self._sent_now()) if one.number == row.task), None)
        if task is None:
            return "samples that are no longer needed"
        if row.sample is None or self._describe_sample is None:
            return self._describe(task)
        return self._describe_sample(task, row.sample)


_TURN_S: Final = 1.0
"""How soon it is noticed that a worker has ended."""

_IDLE_S: Final = 5.0
"""How long workers may take to finish with an outdated stream."""

_FINISH_S: Final = 1.0
_END_S: Final = 5.0
_TRACE_S: Final = 1.0

_FORK_ADVICE: Final = (
    ". It was forked beside {}: a lock that was held there at that moment is never released in a fork. If it waits for"
    " such a lock, pass Reading(start_method='forkserver')"
)

END: Final = object()
"""Returned in place of a message when all tasks are done."""


class Lost(Exception):  # noqa: N818 -- never seen by users
    """Workers have ended or hang; the message says which, and what they were doing."""


class Unusable(Exception):  # noqa: N818 -- never seen by users
    """Workers cannot be used, although nobody asked for them; the tasks are read in another way."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.why)
        self.obstacle = obstacle


class Stale(Exception):  # noqa: N818 -- never seen by users
    """The workers are not ready for another stream, and new ones have to be started."""


class WorkerSet:
    """Worker processes that are started together and end together.

    Args:
        read: makes the message of a task; it is sent to the workers.
        reading: the number of workers, and how they start.
        pin: whether messages are pinned.
        careful: give a worker each task only after the message of the one before was received, so that a task which
            ends or blocks the worker does not take other tasks with it.
        describe: describes a task in words.
        describe_sample: describes the sample at an address of a task in words.
        words: describes a task in words, for which the workers read nothing.
        cache: the cache through which the workers read.
    """

    def __init__(
        self,
        read: ReadTask[Any],
        reading: Reading,
        *,
        pin: bool,
        careful: bool = False,
        describe: Callable[[Any], str],
        describe_sample: DescribeSample | None,
        words: Callable[[Any], str],
        cache: Cache | None,
    ) -> None:
        method = reading.starts_by
        context = context_of(method)
        self._num_workers = reading.num_workers
        self._reading = reading
        self._table = Table(context, reading.num_workers, 0 if cache is None else len(cache.own_counts()))
        self._cache = cache
        self._stop_counting: Callable[[], None] | None = None
        self._trace = TraceFile()
        self._blocks = BlockTable(reading.num_workers)
        self._order = order = TaskSampler(self._table, self._blocks)
        self.processes: list[BaseProcess] = []
        self._report = Reporter(self._table, self.processes, lambda: order.sent, describe, describe_sample)
        # The kernel sends its signal when the thread that started a process ends; only the main one surely stays.
        by_main = method == "forkserver" or threading.current_thread() is threading.main_thread()
        self._named = Globals(read, reading.differing_globals)
        setup = WorkerSetup(
            read,
            self._table,
            self._trace,
            named=self._named,
            init=reading.worker_init,
            words=words,
            counts=None if cache is None else cache.own_counts,
            parent=None if method == "forkserver" else os.getpid(),
            ends_with="signal" if by_main else "poll",
        )
        self._loader: Any = data_loader(
            setup,
            order,
            num_workers=reading.num_workers,
            prefetch=1 if careful else reading.prefetch or 2,
            pin=pin,
            timeout_s=min(_TURN_S, reading.timeout_s),
            context=context,
        )
        self._batches: Any = None
        self.owner = os.getpid()
        self._lacking = ", ".join(not_in_forks()) if method == "fork" else ""
        self._watch: Watch | None = None

    def begin(self, tasks: Iterator[Any]) -> deque[Sent]:
        """Begin a stream of tasks. Returns the queue of those that were sent, the next one to receive first.

        Raises:
            Stale: the workers were started earlier, and one has died or is still busy, or globals that the code of
                samples names have changed since.
            ConfigError: what goes to the workers has to pickle, and does not.
            WorkerError: the workers cannot be started.
        """
        sent = self._order.begin(tasks)
        if self._watch is None:
            self._start()
        else:
            self._begin_again(self._watch)
        return sent

    def _start(self) -> None:
        before = set(active_children())
        # The process that makes this folder removes it. Made by a worker, it would stay when the worker is killed.
        util.get_temp_dir()
        try:
            with warnings.catch_warnings():
                # The error below says that it does not pickle.
                warnings.filterwarnings("ignore", message="Got pickle error")
                # Python 3.12 warns of every fork beside threads; what matters of them is logged below.
                warnings.filterwarnings("ignore", message="This process .* is multi-threaded")
                self._batches = iter(self._loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the run, or worker_init, cannot be sent to worker processes that start anew: {error}; replace lambdas"
                " and inner functions by functions of a module, or pass start_method='fork'"
            ) from error
        except (RuntimeError, OSError) as error:
            raise WorkerError(f"worker processes cannot be started: {error}") from error
        finally:
            self.processes += started_by(self._batches, before)
        if self._cache is not None:
            self._stop_counting = self._cache.follow(self._table.counts)
        unlock_end(self._batches)
        names = names_of(self._batches)
        reading = self._reading
        beside = f", beside {self._lacking}, which forks lack" if self._lacking else ""
        _log.info("%d worker processes start by %s%s", reading.num_workers, reading.starts_by, beside)
        self._watch = Watch(
            self.processes,
            self._report,
            every_s=reading.watchdog_s,
            tick_s=min(1.0, max(0.02, min(reading.watchdog_s, reading.timeout_s) / 4)),
            pipe=pipe_of(self._batches),
            once_started=partial(_unname, names, self._table, reading.num_workers) if names else None,
        )

    def _begin_again(self, watch: Watch) -> None:
        if not self._named.are_current:
            raise Stale
        until = monotonic() + _IDLE_S
        while self._busy():
            if monotonic() > until or not all(is_alive(process) for process in self.processes):
                raise Stale
            sleep(0.002)
        failed = False
        with watch.waiting(0, _IDLE_S):
            try:
                self._batches = iter(self._loader)
            except Exception:
                failed = True
        # Raised outside of the except block, since the error's frames keep torch's iterator and its workers alive.
        if failed:
            raise Stale

    def _busy(self) -> list[BaseProcess]:
        return [one for at, one in enumerate(self.processes) if self._table.row(at).state is State.READING]

    def next(self, sent: deque[Sent]) -> Any:
        """Return the message of the first task in ``sent``, or ``END`` if no tasks are left.

        Raises:
            Lost: the message does not come.
            WorkerError: no message can be received at all, for example because there are no file descriptors left.
        """
        if self._watch is None:
            raise Lost("no workers have been started")
        number = sent[0].number if sent else 0
        worker = number % self._num_workers
        with self._watch.waiting(worker, self._reading.timeout_s) as wait:
            while True:
                got: Any = None
                try:
                    got, problem = next(self._batches, END), ""
                except Exception as error:
                    # Not an error of a sample, since those come as messages. Only its text is kept, since its frames
                    # keep the workers alive.
                    problem = f"{type(error).__name__}: {error}"
                if not problem:
                    break
                self._examine(problem, worker, number, wait)
        if got is END:
            if sent:
                raise Lost(self._who(worker))
            self._order.check()
            return END
        by, count, message = got
        if (by, count) != (worker, number) or isinstance(message, LostMessage):
            raise Lost(self._who(worker))
        if isinstance(message, PlacedRows):
            return message.placed(self._blocks, number)
        self._blocks.received(number, {}, ())
        return message

    @property
    def ended_in_start(self) -> bool:
        """Whether a worker has ended before it came to its first task."""
        ended = [at for at, process in enumerate(self.processes) if not is_alive(process)]
        return any(self._table.row(worker).state is State.STARTING for worker in ended)

    def num_ready(self, sent: deque[Sent]) -> int:
        """Return how many messages of these tasks are done."""
        rows = [self._table.row(worker) for worker in range(self._num_workers)]
        done = [row.task if row.state is State.WAITING else row.task - self._num_workers for row in rows]
        return sum(one.number <= done[one.number % self._num_workers] for one in tuple(sent))

    def _examine(self, problem: str, worker: int, number: int, wait: Wait) -> None:
        """After a turn without a message: raise if a worker is lost, or return to wait for another turn."""
        dead = [at for at, process in enumerate(self.processes) if not is_alive(process)]
        if worker in dead:
            raise Lost(self._who(worker))
        now = monotonic()
        if dead:
            # If another worker has ended, this one may still finish its sample, unless the pipe is blocked.
            row = self._table.row(worker)
            if row.state is State.WAITING and row.task >= number and row.since_s > _TURN_S:
                raise Lost(self._who(worker))
        elif "timed out" not in problem:
            raise WorkerError(f"nothing can be received from worker processes: {problem}")
        if now >= wait.until:
            raise Lost(self._silent(worker))
        if self._watch is not None:
            self._watch.turn()

    def _who(self, worker: int) -> str:
        """Describe which workers have ended, and what they were doing."""
        until = monotonic() + _TURN_S
        while not (dead := [at for at, process in enumerate(self.processes) if not is_alive(process)]):
            # A closed connection can be seen before the end of its process.
            if monotonic() > until:
                return f"worker {worker} (process {self.processes[worker].pid}) sent something that is no message"
            sleep(0.01)
        return "; ".join(f"worker {at} (process {self.processes[at].pid}) {self._ended(at)}" for at in dead)

    def _ended(self, worker: int) -> str:
        return within(DESCRIBE_S, lambda: self._report.ended(worker)) or how_ended(self.processes[worker])

    def _silent(self, worker: int) -> str:
        process = self.processes[worker]
        doing = within(DESCRIBE_S, lambda: self._report.doing(worker)) or "working"
        lines = self._lines(process)
        where = f", in\n{lines}\n" if lines else ". "
        return (
            f"worker {worker} (process {process.pid}) sent nothing for {self._reading.timeout_s:g} s: {doing}{where}"
            f"Raise timeout_s if samples take that long{_FORK_ADVICE.format(self._lacking) if self._lacking else ''}"
        )

    def changes(self) -> list[str]:
        """Return a line for each global that the code of samples names and the program has changed since the start."""
        return self._named.differences("when the workers started", "now")

    def _lines(self, process: BaseProcess) -> str:
        """Return the traceback of a process that hangs, which it writes itself; empty if it is stopped."""
        if not hasattr(signal, "SIGUSR1") or process.pid is None or self._is_starting(process):
            return ""
        try:
            os.kill(process.pid, signal.SIGUSR1)
        except ProcessLookupError:  # it has ended meanwhile, and other code has waited for it
            return ""
        until, size = monotonic() + _TRACE_S, -1
        while monotonic() < until and (size <= 0 or self._trace.size() != size):
            size = self._trace.size()
            sleep(0.02)
        return self._trace.current_thread()

    def _is_starting(self, process: BaseProcess) -> bool:
        return self._table.row(self.processes.index(process)).state is State.STARTING

    def end(self, *, kill_first: bool) -> None:
        """End all processes within seconds. Unless ``kill_first``, those that are idle may end by themselves."""
        if self.owner != os.getpid():
            return  # a copy in a forked process
        if self._watch is not None:
            self._watch.stop()
        self._trace.close()
        if not kill_first:
            # Give workers a moment to finish what they read, which is not needed.
            until = monotonic() + _FINISH_S
            while monotonic() < until and self._busy():
                sleep(0.005)
        kill(self.processes if kill_first else self._busy(), _END_S)
        batches, self._batches, self._loader = self._batches, None, None
        if batches is not None and not sys.is_finalizing():
            # The shutdown of torch takes locks that a killed worker may have had, so it is waited for only some time.
            ending = threading.Thread(target=shut_down, args=(batches,), name=WATCH_THREAD, daemon=True)
            ending.start()
            ending.join(_END_S)
        kill(self.processes, _END_S)
        disown(self.processes)
        if self._stop_counting is not None:
            self._stop_counting()
            self._stop_counting = None


def _unname(names: list[Callable[[], Any]], table: Table, num_workers: int) -> bool:
    """Remove the names of the shared semaphores once all workers run: they are not needed, and would outlast a kill."""
    if any(table.row(worker).state is State.STARTING for worker in range(num_workers)):
        return False
    for take_away in names:
        take_away()
    return True


def _not_started(why: str) -> Obstacle:
    return Obstacle(f"worker processes could not start: {why}", "look at the error of reading=Reading(num_workers=2)")


_log = logging.getLogger("headrace")

T = TypeVar("T")


class WorkerPool(Generic[T]):
    """The worker processes of one loader. They start with the first task, and stay if they are persistent.

    One stream of tasks is read at a time; a new one ends the one before.

    Args:
        reader_now: called at each start of workers. It returns the function that makes the message of a task, and tells
            the address of each sample before it makes it; each worker gets its own copy, forked or pickled at that
            moment. Large arrays of the message may lie in the memory that the function is given.
        reading: the number of workers, how they start, and what happens when they are lost.
        pin: whether messages are pinned.
        describe: describes a task in words, for errors and reports.
        words: the same with the rank, and without reading anything: for what the workers read.
        describe_sample: describes one sample of a task, by the address that the reader told.
        unrestorable: the name of a hook whose results depend on what ran before, so that nothing can be read again.
        restarted: called with the first task that new workers begin with, before ``reader_now``.
        instead: what to do if workers cannot be used; None is an error.
        cache: the cache through which the workers read, whose ``stats`` count what they read.
    """

    def __init__(
        self,
        reader_now: Callable[[], ReadTask[T]],
        reading: Reading,
        *,
        pin: bool,
        describe: Callable[[T], str],
        words: Callable[[T], str],
        describe_sample: DescribeSample | None = None,
        unrestorable: str | None = None,
        restarted: Callable[[T], None] | None = None,
        instead: Instead | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._reader_now = reader_now
        self._reading = reading
        self._pin = pin
        self._describe = describe
        self._words = words
        self._cache = cache
        self._describe_sample = describe_sample
        self._unrestorable = unrestorable
        self._restarted = restarted
        self._instead = instead
        self._worker_set: WorkerSet | None = None
        self._sent: deque[Sent] = deque()
        self._num_replaced = 0
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
        # A loop that was left ends this generator when the program does, and by then the globals may be gone.
        expected: type[Unusable] = Unusable
        try:
            yield from self._from_workers(due, mine)
            return
        except expected as unusable:
            self.close(kill=True)
            instead, obstacle = self._instead, unusable.obstacle
        if instead is not None:
            yield from instead.filled(due.left(), instead.choice.give_up(obstacle))

    def _from_workers(self, due: _Due[T], mine: int) -> Iterator[tuple[T, Any]]:
        sent = self._begin(due)
        losses = 0
        try:
            while True:
                if mine != self._stream:
                    raise StateError("this iterator is outdated: the loader was iterated anew; use the newest iterator")
                message, loss = self._next(sent)
                if loss:
                    losses += 1
                    if self._instead is not None and self._worker_set is not None and self._worker_set.ended_in_start:
                        raise Unusable(_not_started(loss))
                    self._give_up(due, loss, losses)
                    sent = self._begin(due, careful=losses > 1)
                    continue
                if message is END:
                    break
                if isinstance(message, RaisedError) and message.in_setup and self._instead is not None:
                    raise Unusable(_not_started(message.text))
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
        check_process(self._worker_set.owner)
        try:
            return self._worker_set.next(sent), ""
        except Lost as lost:
            return None, str(lost)
        except BaseException:
            # This includes KeyboardInterrupt, which may leave half a message in the pipe, or torch's state unclear.
            self.close(kill=True)
            raise

    def _begin(self, due: _Due[T], *, careful: bool = False) -> deque[Sent]:
        if self._worker_set is not None:
            check_process(self._worker_set.owner)
        if self._worker_set is not None and self._reading.persistent_workers:
            with contextlib.suppress(Stale):
                return self._assign(self._worker_set, due)
        # The workers are not persistent, or one has died, or is still busy with an outdated task.
        self.close(kill=self._worker_set is not None)
        read = self._reader_now()
        if self._instead is not None and (obstacle := self._instead.choice.obstacle(read)):
            raise Unusable(obstacle)
        worker_set = self._worker_set = WorkerSet(
            read,
            self._reading,
            pin=self._pin,
            careful=careful,
            describe=self._describe,
            describe_sample=self._describe_sample,
            words=self._words,
            cache=self._cache,
        )
        _living.add(self)
        try:
            return self._assign(worker_set, due)
        except (ConfigError, WorkerError) as error:
            if self._instead is None:
                raise
            raise Unusable(_not_started(str(error))) from error

    def _assign(self, worker_set: WorkerSet, due: _Due[T]) -> deque[Sent]:
        try:
            self._sent = worker_set.begin(iter(due))
            return self._sent
        except BaseException:
            self.close(kill=True)
            raise

    def _give_up(self, due: _Due[T], loss: str, losses: int) -> None:
        """End all workers, and warn where new ones continue.

        Raises:
            WorkerError: the workers are not replaced.
        """
        changes = [] if self._worker_set is None else self._worker_set.changes()
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
        if changes:
            listed = "\n  ".join(changes)
            raise WorkerError(
                f"{loss}{at}. Workers cannot be replaced: new ones would make other samples, since the program has"
                f" changed globals that the code of the samples names\n  {listed}\nSet them before the loader is"
                " iterated, and resume from the last checkpoint. If a global changes no sample, name it in"
                " Reading(differing_globals=[NAME])"
            )
        if losses > self._reading.max_replacements:
            raise WorkerError(
                f"{loss}{at}. Workers were replaced {losses - 1} times in a row and got no further: look at that "
                "sample, or give workers more memory or time"
            )
        _log.warning("%s%s. New workers continue there (%d)", loss, at, losses)
        self._num_replaced += 1
        if due.first and self._restarted is not None:
            self._restarted(due.first[0])

    @property
    def queue(self) -> Queue:
        """How many messages of the newest stream wait, and how often workers were replaced."""
        worker_set = self._worker_set
        return Queue(0 if worker_set is None else worker_set.num_ready(self._sent), self._num_replaced)

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

    def left(self) -> Iterator[T]:
        """Yield all tasks whose messages were not yielded, and keep none of them."""
        while self.first:
            yield self.first.popleft()
        if self._failed is not None:
            raise self._failed
        yield from self._tasks

    def handed_over(self) -> T:
        """Remove the first task, whose message is about to be yielded, and return it."""
        return self.first.popleft()


_living: weakref.WeakSet[WorkerPool[Any]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a fork, forget the workers of its parent, which multiprocessing would end when the fork ends."""
    for workers in list(_living):
        if workers._worker_set is not None:
            forget(workers._worker_set.processes)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _end_all() -> None:
    """End all workers before torch and multiprocessing try to, since these wait for workers that do not end."""
    for workers in list(_living):
        workers.close(kill=True)
