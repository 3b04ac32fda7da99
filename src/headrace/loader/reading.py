"""`Reading` says how samples are read: when they are asked for, ahead in threads, or ahead in worker processes.

The threads are here, the workers in `headrace.loader.workers`. A thread that hangs is an error after a time-out, since
threads cannot be ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import cycle
from pkgutil import resolve_name
from queue import SimpleQueue
from threading import Thread, current_thread
from time import monotonic, thread_time
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from weakref import WeakSet

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from headrace.config import NotNegative, Positive, check_fields
from headrace.datasets.dataset import Tell, Traits
from headrace.errors import ConfigError, StateError, WorkerError
from headrace.io.threads import end_threads, join_threads
from headrace.loader.spans import SPAN_BYTES, Batch

T = TypeVar("T")
M = TypeVar("M")

START_METHODS: Final = ("fork", "spawn") if hasattr(os, "fork") and sys.platform == "linux" else ("spawn",)
"""How workers may start; the first one is used if nothing is said."""

METRICS_THREAD: Final = "headrace-metrics"
"""The name of the thread that serves metrics. It holds no lock that matters in a fork."""

MOST_THREADS: Final = 32
"""The most threads that read ``ahead``."""

_START_S: Final = 0.005
"""How long the loop waits before another thread is started for a store."""

_LASTS: Final = 0.9
"""How much of what earlier tasks took still counts, of which threads have used a part of a core."""

_SENT_AT_ONCE: Final = 4
GIVES_WAY_S: Final = 0.03
"""The longest that a loop waits so that a thread gets the interpreter lock."""

_LEAST_STEP_S: Final = 0.005
_APART, _APART_IN_VAIN = 10, 50
"""After a wait, no other one begins for so many times as long as it took: longer if it was in vain.

Reads that are not waited for cost a loop about a tenth of its launches, so it is not worth more to wait for them.
"""
STOP_S: Final = 5.0
DESCRIBE_S: Final = 5.0
"""How long the description of a sample may take, which may have to be read from a disk."""


def within(limit_s: float, function: Callable[[], Any]) -> Any:
    """Return the result of a function, or None if it takes longer: it may wait for a disk that does not answer."""
    found: list[Any] = []

    def call() -> None:
        with contextlib.suppress(Exception):
            found.append(function())

    thread = Thread(target=call, name="headrace-report", daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def left_by_forks() -> list[str]:
    """Return JAX if it has begun, and the backends of the process group that do more than open connections."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    has_begun = bridge is not None and getattr(bridge, "backends_are_initialized", lambda: True)()
    # The configuration looks like "cpu:gloo,cuda:nccl".
    config = dist.get_backend_config() if dist.is_available() and dist.is_initialized() else ""
    backends = {one.rpartition(":")[2] for one in config.split(",")} - {"", "gloo", "fake"}
    return ["JAX"] * has_begun + sorted(backends)


def unforkable() -> str:
    """Return in words why this process must not be forked; empty if it may be.

    JAX computes in threads of its own, and MPI and UCC keep memory and connections that a fork breaks here, too.
    """
    found = [one for one in left_by_forks() if one in ("JAX", "mpi", "ucc")]
    return f"{found[0]} does not survive a fork of this program" if found else ""


def check_process(owner: int) -> None:
    """Raise StateError in a fork of the process that began to read, whose threads and workers do not serve it."""
    if owner != os.getpid():
        raise StateError(
            f"this loader began to read in process {owner}, and this is a fork of it, process {os.getpid()}. Threads"
            " and workers of a loader serve only the process that started them: make another loader in each process, by"
            " headrace.Loader(run, ...) or copy.deepcopy(loader), or call loader.close() here first and iterate anew"
        )


class Work(ABC, Generic[T, M]):
    """Tasks of one kind: how one is read, here and in worker processes, and described in words.

    Attributes:
        traits: what is known of the samples.
        here: how this process reads if nothing is said, and no worker helps.
        in_order: why one worker has to make all samples, if that is so.
        words: describes a task, with the rank and without reading anything: for what the workers read, too.
    """

    traits: Traits
    here: Reading
    in_order: str | None = None
    words: Callable[[T], str]

    @abstractmethod
    def readers(self, num_readers: int, *, pin: bool) -> list[Callable[[T], M]]:
        """Return readers of this process. Task n is for reader ``n % num_readers``."""

    @abstractmethod
    def for_workers(self) -> Callable[[T, Tell, Any], M]:
        """Return what reads in a worker; each has its own copy, forked or pickled at this moment.

        It tells the address of each sample before it makes it. Large arrays of the result may lie in the memory that it
        is given.
        """

    @abstractmethod
    def pinned(self, made: M) -> M:
        """Return what a worker made in pinned memory."""

    def describe(self, task: T) -> str:
        """Describe a task for errors and reports. This may read."""
        return self.words(task)

    def describe_sample(self, task: T, address: int) -> str:
        """Describe one sample of a task, by the address that the reader told."""
        return self.describe(task)

    def renewed(self, task: T) -> T:
        """Return the first task of a worker that replaces another, with all that this worker has to know."""
        return task


class Pending(Future[M], Generic[T, M]):
    """A task that was sent to a thread, the thread that reads it, and what that took."""

    def __init__(self, task: T) -> None:
        super().__init__()
        self.task = task
        self.thread: Thread | None = None
        self.seconds = self.cpu_s = 0.0


def in_threads(
    reads: Sequence[Callable[[T], M]],
    tasks: Iterator[T],
    reading: Reading,
    describe: Callable[[T], str],
    sent: deque[Pending[T, M]] | None = None,
) -> Iterator[tuple[T, M]]:
    """Yield each task with its result, in order; task n is read by ``reads[n % len(reads)]`` in a thread.

    ``sent`` are meanwhile those that threads were sent and did not hand over yet, in order.

    Raises:
        WorkerError: a task took longer than ``timeout_s``; the message names it, and the line that the thread is at.
    """
    threads = _Threads(reads, reading, describe)
    most = num_ahead(reading)
    sent = deque() if sent is None else sent
    try:
        # Tasks are sent before the next answer is yielded, so that the threads read while the training loop uses that.
        # As long as fewer are under way than there may be, several are sent for each answer, and no answer waits for
        # all of them.
        is_over, step_s = False, 0.0
        while not is_over or sent:
            is_sent = False
            for _ in range(_SENT_AT_ONCE):
                if is_over or len(sent) > most:
                    break
                task = next(tasks, None)
                is_over = task is None
                if task is not None:
                    sent.append(Pending(task))
                    threads.send(sent[-1])
                    is_sent = True
            is_full = is_over or len(sent) > most
            if sent and (is_full or (len(sent) > len(reads) and sent[0].done())):
                is_there = sent[0].done()
                # A loop that only takes batches had better go on while the thread reads.
                if is_there and is_sent and step_s > _LEAST_STEP_S:
                    threads.give_way(sent[-1])
                since = monotonic()
                yield threads.receive(sent)
                step_s = monotonic() - since if is_there else 0.0
    finally:
        threads.stop()
        # While the interpreter ends, other threads no longer run.
        if not threads.is_finalizing() and not threads.is_lost:
            join_threads(threads.threads, STOP_S)
        sent.clear()


_LIVING: Final[WeakSet[_Threads[Any, Any]]] = WeakSet()


@atexit.register
def _end_with_the_program() -> None:
    """End the threads of loops that were left."""
    living = list(_LIVING)
    for one in living:
        one.stop()
    end_threads(thread for one in living for thread in one.threads)


class _Threads(Generic[T, M]):
    """Threads that read tasks: one for each reader, which takes tasks in turn.

    With ``Reading(ahead=)`` all readers are the same and share the tasks, and another thread is started whenever the
    loop has to wait while all threads together keep less than half a core busy, since they wait for a store. So one
    thread reads what lies in a cache on the disk: threads that take what is at hand slow each other down, and each has
    memory of its own. Nothing more is asked of a store before the first result is there.
    """

    def __init__(self, reads: Sequence[Callable[[T], M]], reading: Reading, describe: Callable[[T], str]) -> None:
        self.is_lost = False
        """Whether a task took too long, so that a loop does not wait for it once more."""
        self.is_finalizing = sys.is_finalizing
        """Kept here, since a loop that was left may end when the names of modules are gone."""
        self.threads: list[Thread] = []
        self._owner = os.getpid()
        self._reading = reading
        self._describe = describe
        self._most = len(reads) if reading.ahead is None else max(MOST_THREADS, len(reads))
        tasks: list[SimpleQueue[Any]] = [SimpleQueue() for _ in (reads if reading.ahead is None else reads[:1])]
        self._tasks = deque(tasks)
        self._seconds = self._cpu_s = 0.0
        self._gives_way_from = 0.0
        for read, given in zip(reads, cycle(tasks), strict=False):
            self._start(read, given)
        self._start_another = partial(self._start, reads[0], tasks[0])
        _LIVING.add(self)

    def _start(self, read: Callable[[T], M], tasks: SimpleQueue[Any]) -> None:
        thread = Thread(target=self._work, args=(read, tasks), name="headrace-read", daemon=True)
        self.threads.append(thread)
        thread.start()

    def send(self, sent: Pending[T, M]) -> None:
        """Have a task read by the reader whose turn it is."""
        self._tasks[0].put(sent)
        self._tasks.rotate(-1)

    def give_way(self, sent: Pending[T, M]) -> None:
        """Let what was sent last be read, for some ms, before the training loop goes on with a batch in hand.

        A thread that wants the interpreter lock does not get it from a loop that launches kernels: the loop takes it
        back before the thread wakes. Until the thread does get it, each launch wakes it in vain, and takes half as long
        again. That lasts far longer than the read itself. A thread that waits for a disk or a store needs no lock, and
        is waited for in vain.
        """
        since, apart = monotonic(), _APART
        if since < self._gives_way_from:
            return
        try:
            sent.exception(GIVES_WAY_S)
        except TimeoutError:
            apart = _APART_IN_VAIN
        self._gives_way_from = since + apart * (monotonic() - since)

    def receive(self, all_sent: deque[Pending[T, M]]) -> tuple[T, M]:
        """Wait for the result of the first task, and return both; raises its error."""
        check_process(self._owner)
        sent, reading, since, num_said = all_sent.popleft(), self._reading, monotonic(), 0
        while True:
            left_s = min(reading.timeout_s, (num_said + 1) * reading.watchdog_s) - (monotonic() - since)
            may_start = len(self.threads) < self._most
            try:
                error = sent.exception(min(left_s, _START_S) if may_start else left_s)
                break
            except TimeoutError:
                waited_s = monotonic() - since
            if waited_s >= reading.timeout_s:
                self.is_lost = True
                what = within(DESCRIBE_S, lambda: self._describe(sent.task)) or "samples"
                raise WorkerError(
                    f"nothing came for {reading.timeout_s:g} s from a thread that reads {what}, in\n{_where(sent)}\n"
                    "Raise timeout_s if samples take that long. Threads cannot be replaced; worker processes can: "
                    "Reading(num_workers=2)"
                )
            if waited_s >= (num_said + 1) * reading.watchdog_s:
                num_said += 1
                within(DESCRIBE_S, partial(_say, waited_s, self._describe, sent.task))
            if may_start and len(self.threads) * self._cpu_s < self._seconds / 2:
                self._start_another()
        self._seconds = _LASTS * self._seconds + sent.seconds
        self._cpu_s = _LASTS * self._cpu_s + sent.cpu_s
        if error is not None:
            raise error
        return sent.task, sent.result()

    def stop(self) -> None:
        """Make threads end after their current task. One that hangs ends when the task does, or with the process."""
        for tasks in self._tasks:
            while tasks.qsize():
                # A loop that was left may get here when the program ends, and by then the names of modules may be gone.
                try:  # noqa: SIM105
                    tasks.get_nowait()
                except Exception:  # a thread was faster
                    pass
        for _ in self.threads:
            self._tasks[0].put(None)
            self._tasks.rotate(-1)

    def _work(self, read: Callable[[T], M], tasks: SimpleQueue[Pending[T, M] | None]) -> None:
        """Read tasks until there is None. Called in a thread, which is known by this object for as long as it runs."""
        while (sent := tasks.get()) is not None:
            sent.thread = current_thread()
            begin, cpu_s = monotonic(), thread_time()
            made: M | None = None
            failed: BaseException | None = None
            try:
                made = read(sent.task)
            except BaseException as error:  # raised again where the answer is received
                failed = error
            sent.seconds, sent.cpu_s = monotonic() - begin, thread_time() - cpu_s
            if failed is None:
                sent.set_result(made)  # type: ignore[arg-type]
            else:
                sent.set_exception(failed)
            # A result that lived on in this thread would keep its memory from being reused.
            del sent, made, failed


def _where(sent: Pending[Any, Any]) -> str:
    """Return the lines of code that the thread of a task is at, the innermost call first."""
    thread = sent.thread
    frame = None if thread is None else sys._current_frames().get(thread.ident or 0)
    found = [] if frame is None else traceback.extract_stack(frame)
    own = next((at for at, one in enumerate(found) if one.name == "_work"), -1)
    return "\n".join(f'  File "{one.filename}", line {one.lineno} in {one.name}' for one in found[:own:-1])


def _say(waited_s: float, describe: Callable[[Any], str], task: Any) -> None:
    print(f"headrace: waiting {waited_s:.0f} s for a thread that reads {describe(task)}", file=sys.stderr, flush=True)


_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where samples are read, in threads or in worker processes, and how far ahead. None of it changes a sample.

    A `Loader` that gets no `Reading` chooses by its samples, and reads in this process where no worker can be used.
    One that gets a `Reading` does what that says, or raises an error.

    A thread is enough for token data, which cost least there. Media, whose decoding holds the interpreter, are best
    read in worker processes, which read into shared memory that is used again. With
    ``num_threads=0, num_workers=0`` the loader reads a batch when it is asked for.

    Attributes:
        num_threads: the number of threads that read, if there are no workers.
        num_workers: the number of worker processes.
        prefetch: the number of spans that each thread or worker keeps ready. A span is about 9 MiB, 16 MiB for workers,
            and for media no more than is read in 20 ms. None means 1 for threads and 2 for workers.
        ahead: for threads, how many bytes of samples are read before they are due, such as ``"2GB"``, instead of
            ``prefetch``. The plan knows what comes next, across epochs and chapters. While the loop waits, and threads
            only wait for an object store, more of them are started: up to 32, each of which reads a span.
        pin_memory: whether batches are pinned. None pins if CUDA is available; True is an error of the loader if torch
            cannot pin.
        start_method: how workers start. None forks them on Linux, from a process that is forked when a loop begins:
            workers, and those that replace them, have what the program had then, beside CUDA and threads too.
            Elsewhere, and once JAX, MPI or UCC is used, it is ``"spawn"``: workers start anew, datasets and the
            functions in them have to pickle, and a script needs ``if __name__ == "__main__"``.
        worker_init: a function, or its name ``"module:function"``, called without arguments in each worker before its
            first sample, also in workers that replace others. In workers that start anew it sets what the program has
            set while it ran.
        persistent_workers: whether workers stay for the next iteration of the loader. They have what the program had
            when they started, not what it has set since.
        timeout_s: how long a batch may take to come. After that a worker is lost, and a thread is a WorkerError.
        on_lost_worker: what happens when workers were killed or hang. ``"replace"`` starts new ones at the first batch
            that was not delivered, which make the same bytes; ``"raise"`` raises WorkerError.
        max_replacements: how often workers are replaced in a row, without a batch in between, before WorkerError.
        watchdog_s: how often a waiting loader prints on stderr what each worker is doing, with shard and key.

    Raises:
        ConfigError: a value is not allowed.

    Example:
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> run = headrace.Run(captions, global_batch_size=4, samples=8)
        >>> reading = headrace.loader.Reading(num_threads=2, prefetch=4)  # or num_workers=8 if decoding is slow
        >>> [len(batch["caption"]) for batch in headrace.Loader(run, micro_batch_size=4, reading=reading)]
        [4, 4]
    """

    num_threads: NotNegative = 1
    num_workers: NotNegative = 0
    prefetch: Positive | None = None
    ahead: str | int | None = None
    pin_memory: bool | None = None
    start_method: Literal["fork", "spawn"] | None = None
    worker_init: Callable[[], Any] | str | None = None
    persistent_workers: bool = False
    timeout_s: _Seconds = 300.0
    on_lost_worker: Literal["replace", "raise"] = "replace"
    max_replacements: NotNegative = 3
    watchdog_s: _Seconds = 60.0

    @property
    def starts_by(self) -> str:
        """How workers start now: ``start_method``, or what is safe here."""
        return self.start_method or ("spawn" if unforkable() else START_METHODS[0])

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range, words that are not allowed, and options that contradict."""
        if self.start_method not in (None, *START_METHODS):
            raise ConfigError(
                f"start_method is {self.start_method!r}; here allowed are None, {', '.join(map(repr, START_METHODS))}."
                " Workers that start anew do so by 'spawn'"
            )
        check_fields(self)
        if self.ahead is not None:
            _size(self.ahead)
            if self.num_workers or not self.num_threads or self.prefetch is not None:
                raise ConfigError(
                    f"ahead is {self.ahead!r}, which is for threads and replaces prefetch: leave out num_workers and"
                    " prefetch, and num_threads=0"
                )
        init = self.worker_init
        if init is not None and not (":" in init if isinstance(init, str) else callable(init)):
            raise ConfigError(f"worker_init is {init!r:.80}; allowed are a function, or its name as 'module:function'")


def _size(ahead: str | int) -> int:
    """Return ``ahead`` as a number of bytes."""
    num_bytes: int = resolve_name("headrace.io:parse_size")(ahead, "ahead")
    return num_bytes


def num_ahead(reading: Reading) -> int:
    """Return the number of spans that threads are sent before the first one must come back."""
    if reading.ahead is None:
        return reading.num_threads * (reading.prefetch or 1)
    return max(1, _size(reading.ahead) // SPAN_BYTES)


def pins(reading: Reading) -> bool:
    """Whether batches are pinned. Raises ConfigError if ``pin_memory`` is True and torch cannot pin."""
    has_cuda = torch.cuda.is_available()
    if reading.pin_memory and not has_cuda:
        try:
            torch.empty(1).pin_memory()  # other accelerators may
        except RuntimeError as error:
            raise ConfigError(
                f"pin_memory=True, and torch cannot pin here: {str(error).splitlines()[0]}; pin_memory=None pins only"
                " if CUDA is available"
            ) from error
    return has_cuda if reading.pin_memory is None else reading.pin_memory


def pinned(batch: Batch) -> Batch:
    """Return the batch with its tensors in pinned memory, which a GPU can copy from while the CPU works."""
    return {name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def as_tensors(columns: Mapping[str, Any]) -> Batch:
    """Return columns with arrays as tensors. Arrays that cannot be written to are copied, since batches are changed."""
    return {
        name: torch.from_numpy(value if value.flags.writeable else value.copy())
        if isinstance(value, np.ndarray)
        else value
        for name, value in columns.items()
    }
