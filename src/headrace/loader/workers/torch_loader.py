"""Torch's ``DataLoader``: how it is made, and what is done with it that it does not offer itself.

This uses private names of torch, as of 2.13. If a version has other names, what they are used for is lost:

_remove_worker_pids      a dead worker is replaced; otherwise torch raises in a training step, and a warning says so
_MultiProcessingDataLoaderIter, _get_iterator, _reset    the same for a worker that dies before all have a task
_workers                 workers are told apart from those of a loader that starts at the same time
_worker_result_queue     a message of which a dead worker has written only a part is not waited for
_index_queues, _workers_done_event, _worker_result_queue    a killed run leaves no names of semaphores behind
_shutdown_workers        workers end by themselves before they are killed
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from multiprocessing import active_children, util
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Condition, SemLock
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Sampler
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from headrace.loader.workers.worker import Sent, Table, WorkerSetup

_log = logging.getLogger("headrace")

_starts: Final = count()


class TaskSampler(Sampler[tuple[int, int, Any]]):
    """Hands the tasks of the newest stream to the DataLoader, which returns their messages in the same order."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._tasks: Iterator[Any] = iter(())
        self._failed: BaseException | None = None
        self.sent: deque[Sent] = deque()

    def begin(self, tasks: Iterator[Any]) -> deque[Sent]:
        """Begin another stream, and return the queue of its tasks that were sent; the reader of messages empties it."""
        self._table.stream += 1
        self._tasks = tasks
        self._failed = None
        self.sent = deque()
        return self.sent

    def check(self) -> None:
        """Raise what the planning of tasks raised. Called after the messages of the tasks before it were received."""
        if self._failed is not None:
            raise self._failed

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """Yield stream, number and task, as a plain tuple, which pickles faster."""
        mine, stream = self.sent, self._table.stream
        try:
            for number, task in enumerate(self._tasks):
                mine.append(Sent(stream, number, task))
                yield stream, number, task
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
    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Called by torch when all workers have started, just before they are given their first tasks."""
        if first_iter:
            no_alarm(self)
        super()._reset(loader, first_iter)


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
