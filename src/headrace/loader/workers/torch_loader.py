"""Torch's ``DataLoader``: how it is made, and what is done with it that it does not offer.

Names that begin with ``_`` are torch's own, as of 2.13. Where a version has others, what they are for is lost:

_remove_worker_pids      a dead worker is replaced: torch raises in the midst of a training step, which is warned of
_MultiProcessingDataLoaderIter, _get_iterator, _reset    so is one that dies before all have their first tasks
_workers                 workers are told apart from those of a loader that starts at the same time
_worker_result_queue     a message of which a dead worker has written one half is not waited for
_index_queues, _workers_done_event and that one    semaphores have no names that a killed run leaves behind
_shutdown_workers        workers end by themselves, before they are killed
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
        """Another stream; gives those of its tasks that are on their way, which whoever takes a message takes out."""
        self._table.stream += 1
        self._tasks = tasks
        self._failed = None
        self.sent = deque()
        return self.sent

    def check(self) -> None:
        """Raise what the planning of tasks raised: after those before it, not in the midst of them."""
        if self._failed is not None:
            raise self._failed

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """Stream, number and task, as a plain tuple, which pickles faster."""
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
    """Torch's, which starts workers when it is iterated.

    It draws a seed for them, which is not taken from the global generator: what a training draws would depend on
    whether there are workers, and on how many were lost.
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
        """All workers have started; now they are given their first tasks."""
        if first_iter:
            no_alarm(self)
        super()._reset(loader, first_iter)


def _as_is(batch: Any) -> Any:
    return batch


def started_by(batches: Any, before: set[BaseProcess]) -> Sequence[BaseProcess]:
    """The workers, in the order of their numbers; of an iterator that was not made, all that started since."""
    found = getattr(batches, "_workers", None)
    if found is not None:
        return list(found)
    return sorted((one for one in active_children() if one not in before), key=lambda process: process._identity)


def no_alarm(batches: Any) -> None:
    """Have the main thread go on when a worker dies: torch raises there, in the midst of a training step."""
    remove = getattr(signal_handling, "_remove_worker_pids", None)
    if remove is None:
        _log.warning(
            "Headrace does not know torch %s: when a worker dies, torch raises a RuntimeError in the main thread, and "
            "the worker is not replaced; take another version of either",
            torch.__version__,
        )
    elif getattr(batches, "_worker_pids_set", False):
        remove(id(batches))
        batches._worker_pids_set = False


def pipe_of(batches: Any) -> int | None:
    """The writing end of the pipe through which messages come."""
    writer = getattr(getattr(batches, "_worker_result_queue", None), "_writer", None)
    return None if writer is None else int(writer.fileno())


def names_of(batches: Any) -> list[Callable[[], Any]]:
    """What takes away the names of the semaphores in a DataLoader's iterator; forked workers need none."""
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
    """End the workers kindly; it may wait for locks that a killed one had."""
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()
