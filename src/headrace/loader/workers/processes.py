"""Worker processes: how torch's ``DataLoader`` starts them, whether they are alive, and how they end.

This uses private names of torch, as of 2.13, and of JAX 0.10. If a version has other names, what they are used for is
lost:

_remove_worker_pids      a dead worker is replaced; otherwise torch raises in a training step, and a warning says so
_MultiProcessingDataLoaderIter, _get_iterator, _reset    the same for a worker that dies before all have a task
_next_data, _sampler_iter    a message is received without a note for torch's profiler
_workers                 workers are told apart from those of a loader that starts at the same time
_worker_result_queue     a message of which a dead worker has written only a part is not waited for
_index_queues, _workers_done_event, _worker_result_queue    a killed run leaves no names of semaphores behind
_workers_done_event      a worker that is killed while it holds a lock does not block the program
_shutdown_workers        workers end by themselves before they are killed
jax._src.xla_bridge      it is said whether workers are forked beside a JAX that has begun
"""

from __future__ import annotations

import logging
import multiprocessing.process
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from multiprocessing import active_children, connection, get_context, util
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Condition, SemLock
from time import monotonic, sleep
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from headrace.loader.reading import METRICS_THREAD
from headrace.loader.workers.blocks import BlockTable, Offer
from headrace.loader.workers.worker import Sent, Table, WorkerSetup

WATCH_THREAD: Final = "headrace-watch"
"""The name of the threads that watch workers. They hold no lock that a process forked meanwhile would need."""

_HARMLESS: Final = ("QueueFeederThread", WATCH_THREAD, METRICS_THREAD)
"""Threads that hold no lock which a forked process would need."""

_FORKABLE_BACKENDS: Final = {"gloo", "fake"}


def context_of(method: str) -> BaseContext:
    """Return the multiprocessing context of a start method."""
    context = get_context(method)
    if method == "forkserver":
        # The server imports torch, and what workers read with, once, and each worker is a copy of it.
        context.set_forkserver_preload([f"{__package__}.pool", "headrace.loader.ragged", "headrace.loader.framed"])
    return context


def not_in_forks() -> list[str]:
    """Return in words what this process has now and its forks have not, or must not use.

    A fork keeps only one of the threads, and no memory of devices. Workers are forked all the same, as those of torch
    are: they use none of it, and what can go wrong is a lock that another thread holds at that moment, which is never
    released in the fork. Then the worker hangs, which is noticed, and these words are part of the error.

    - CUDA, once initialised, cannot be used in a fork. JAX has threads of its own from its first computation on.
    - NCCL, MPI and UCC register memory with devices. The threads of gloo hold only locks of gloo, which a worker that
      does not communicate never takes.
    - Threads that feed the queues of other worker processes, watch them, or serve metrics hold no lock that matters.
    """
    found = ["CUDA"] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "backends_are_initialized", lambda: True)():
        found.append("JAX")
    if dist.is_available() and dist.is_initialized():
        # The configuration looks like "cpu:gloo,cuda:nccl".
        backends = {one.rpartition(":")[2] for one in dist.get_backend_config().split(",")}
        found += sorted(backends - _FORKABLE_BACKENDS)
    me = threading.current_thread()
    return found + [
        f"thread {one.name!r}" for one in threading.enumerate() if one is not me and one.name not in _HARMLESS
    ]


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


def disown(processes: list[BaseProcess]) -> None:
    """Keep this process from waiting, at its end, for processes that cannot be killed or were waited for already."""
    forget([process for process in processes if process.is_alive()])


def forget(processes: Iterable[BaseProcess]) -> None:
    """Keep multiprocessing from doing anything about processes when this one ends."""
    multiprocessing.process._children.difference_update(processes)  # type: ignore[attr-defined]


_log = logging.getLogger("headrace")

_starts: Final = count()


class TaskSampler(Sampler[tuple[int, int, Any, Offer]]):
    """Hands the tasks of the newest stream to the DataLoader, which returns their messages in the same order."""

    def __init__(self, table: Table, blocks: BlockTable) -> None:
        self._table = table
        self._blocks = blocks
        self._tasks: Iterator[Any] = iter(())
        self._failed: BaseException | None = None
        self.sent: deque[Sent] = deque()

    def begin(self, tasks: Iterator[Any]) -> deque[Sent]:
        """Begin another stream, and return the queue of its tasks that were sent; the reader of messages empties it."""
        self._table.stream += 1
        self._blocks.clear()
        self._tasks = tasks
        self._failed = None
        self.sent = deque()
        return self.sent

    def check(self) -> None:
        """Raise what the planning of tasks raised. Called after the messages of the tasks before it were received."""
        if self._failed is not None:
            raise self._failed

    def __iter__(self) -> Iterator[tuple[int, int, Any, Offer]]:
        """Yield stream, number, task and offer, as a plain tuple, which pickles faster."""
        mine, stream = self.sent, self._table.stream
        try:
            for number, task in enumerate(self._tasks):
                mine.append(Sent(stream, number, task))
                yield stream, number, task, self._blocks.offer(number)
        except Exception as error:
            self._failed = error


def data_loader(
    setup: WorkerSetup,
    order: TaskSampler,
    *,
    num_workers: int,
    prefetch: int,
    pin: bool,
    timeout_s: float,
    context: BaseContext,
) -> DataLoader[Any]:
    """Make a ``DataLoader`` of torch, which starts its workers when it is iterated.

    It draws a seed for the workers from a generator of its own. From the global one, the random numbers of a training
    would depend on whether there are workers, and on how many were lost.
    """
    generator = torch.Generator()
    generator.manual_seed((torch.initial_seed() + next(_starts)) % 2**63)
    return _Loader(
        setup,
        sampler=order,
        batch_size=None,
        collate_fn=_as_is,
        num_workers=num_workers,
        prefetch_factor=prefetch,
        pin_memory=pin,
        timeout=timeout_s,
        persistent_workers=True,
        multiprocessing_context=context,
        worker_init_fn=setup.start,
        generator=generator,
    )


class _Loader(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return _Batches(self)


class _Batches(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader[Any]) -> None:
        # As the interpreter ends, names of modules are None, and an iterator that was left is deleted only then.
        self._getpid = os.getpid
        self._owner = os.getpid()
        super().__init__(loader)

    def _shutdown_workers(self) -> None:
        """End the workers, but those of its parent only in the parent, whom a fork would keep waiting for them."""
        if self._owner == self._getpid():
            super()._shutdown_workers()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Called by torch when all workers have started, just before they are given their first tasks."""
        if first_iter:
            no_alarm(self)
        super()._reset(loader, first_iter)

    def __next__(self) -> Any:
        """Return the next message. Torch would also note it for its profiler, which takes longer than all the rest."""
        if self._sampler_iter is None:
            self._reset()  # type: ignore[call-arg]
        return self._next_data()  # type: ignore[no-untyped-call]


def _as_is(batch: Any) -> Any:
    return batch


def started_by(batches: Any, before: set[BaseProcess]) -> Sequence[BaseProcess]:
    """Return the workers, in the order of their numbers; if the iterator could not be made, all that started since."""
    found = getattr(batches, "_workers", None)
    if found is not None:
        return list(found)
    return sorted((one for one in active_children() if one not in before), key=lambda process: process._identity)


def no_alarm(batches: Any) -> None:
    """Keep torch from raising in the main thread, possibly within a training step, when a worker dies."""
    remove = getattr(signal_handling, "_remove_worker_pids", None)
    if remove is None:
        _log.warning(
            "Headrace does not know torch %s: when a worker dies, torch raises a RuntimeError in the main thread, and "
            "the worker is not replaced; use another version of torch or of Headrace",
            torch.__version__,
        )
    elif getattr(batches, "_worker_pids_set", False):
        remove(id(batches))
        batches._worker_pids_set = False


def pipe_of(batches: Any) -> int | None:
    """Return the file descriptor of the writing end of the pipe that messages come through, or None."""
    writer = getattr(getattr(batches, "_worker_result_queue", None), "_writer", None)
    return None if writer is None else int(writer.fileno())


def unlock_end(batches: Any) -> None:
    """Let this process say and see that the workers of a DataLoader's iterator shall end without a lock.

    Workers take the lock of this event between two tasks. One that is killed just then never releases it, and this
    process would wait for it for ever. It alone sets the event, so that the semaphore within is enough.
    """
    event = batches._workers_done_event
    flag = event._flag

    def is_set() -> bool:
        return bool(flag.acquire(False)) and not flag.release()

    def set_without_lock() -> None:
        flag.acquire(False)
        flag.release()

    event.is_set, event.set = is_set, set_without_lock


def names_of(batches: Any) -> list[Callable[[], Any]]:
    """Return functions that remove the names of the semaphores of a DataLoader's iterator."""
    queues = [getattr(batches, "_worker_result_queue", None), *getattr(batches, "_index_queues", ())]
    things = [*queues, getattr(batches, "_workers_done_event", None)]
    names = {name for thing in things if thing is not None for name in _names(thing)}
    return [
        finalizer
        for finalizer in list(util._finalizer_registry.values())  # type: ignore[attr-defined]
        if finalizer._callback is SemLock._cleanup and finalizer._args[0] in names  # type: ignore[attr-defined]
    ]


def _names(thing: Any) -> Iterator[str]:
    for value in vars(thing).values():
        if isinstance(value, SemLock):
            yield value._semlock.name  # type: ignore[attr-defined]
        elif isinstance(value, Condition):
            yield from _names(value)


def shut_down(batches: Any) -> None:
    """Let torch end the workers. This may wait for a lock that a killed worker had."""
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()
