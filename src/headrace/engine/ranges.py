"""Worker processes for an object that can be pickled and does ranges of numbers: samples to measure, or to decode.

The workers are fresh processes. They import the calling script as ``multiprocessing`` does, as ``__mp_main__``, since
the object may be of a class of that script.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import spawn
from typing import Final, Protocol, TypeVar

import msgspec

from headrace.engine.processes import REPORT_S, RUN_AHEAD, WorkerProcesses, run_tasks
from headrace.engine.serving import Done, Failed, Parent, Progress, Reply, attempted, serve
from headrace.errors import ConfigError, HeadraceError, WorkerError

R = TypeVar("R", covariant=True)

MAIN: Final = "headrace.engine.ranges:main"
_OF_SCRIPT: Final = ("sys_path", "sys_argv", "dir", "init_main_from_name", "init_main_from_path")


class RangeWork(Protocol[R]):
    """Work on ranges of numbers, whose results can be pickled."""

    def run(self, first: int, end: int, on_done: Callable[[int], None]) -> R:
        """Do ``[first, end)``; ``on_done`` is called now and then with how many of them are done."""


class _Setup(msgspec.Struct, frozen=True):
    parent: int
    script: bytes
    work: bytes


class _Range(msgspec.Struct, frozen=True):
    task_index: int
    first: int
    end: int

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"numbers {self.first:,} to {self.end:,}"


def run_ranges(
    work: RangeWork[R],
    ranges: Sequence[tuple[int, int]],
    *,
    workers: int,
    name: str,
    what: str,
    on_done: Callable[[int], None] = lambda number: None,
) -> Iterator[R]:
    """Do ranges, in this process or in workers; yield the results in the order of the ranges.

    Args:
        work: the object; if there are workers, each gets a pickled copy.
        ranges: ``[first, end)`` of each.
        workers: number of processes; with 1, or a single range, this process does them.
        name: what the object is, for messages: ``the encoder and its dataset``.
        what: what is done, for messages: ``samples from {first:,} on were measured``.
        on_done: called now and then with how many numbers are done in the ranges whose results were not yielded yet.

    Raises:
        ConfigError: the object cannot be pickled.
        WorkerError: several workers have ended in the same range; the message says in which.
        Exception: what ``work.run`` raises.
    """
    if workers == 1 or len(ranges) < 2:
        for first, end in ranges:
            yield work.run(first, end, on_done)
        return
    script = {name: value for name, value in spawn.get_preparation_data("headrace").items() if name in _OF_SCRIPT}
    setup = _Setup(os.getpid(), pickle.dumps(script), _pickled(work, name))
    tasks = [_Range(index, first, end) for index, (first, end) in enumerate(ranges)]
    underway: dict[int, int] = {}
    yielded = 0

    def report(progress: Progress | None) -> None:
        if progress is not None:
            underway[progress.task_index] = progress.documents
        on_done(sum(number for task_index, number in underway.items() if task_index >= yielded))

    with WorkerProcesses(min(workers, len(ranges)), setup, MAIN) as processes:
        results = run_tasks(
            processes, tasks, first_task=0, ready=(), run_ahead=RUN_AHEAD, on_progress=report, interval_s=REPORT_S
        )
        while True:
            try:
                result = next(results, None)
            except WorkerError as error:
                raise WorkerError(f"a process ended while {what.format(first=ranges[yielded][0])}: {error}") from error
            if result is None:
                return
            if isinstance(result, Failed):
                raise result.error()
            yielded += 1
            yield pickle.loads(result.read(bytes))


def _pickled(work: RangeWork[R], name: str) -> bytes:
    try:
        return pickle.dumps(work)
    except Exception as error:  # the user's classes may raise anything
        raise ConfigError(
            f"{name} cannot be sent to processes: {type(error).__name__}: {error}; define its class at the top of a"
            " module, without locks or open files, or use this process alone, workers=1"
        ) from error


def main(descriptor: int) -> None:
    """Serve the parent at the other end of this socket."""
    serve(descriptor, _Setup, _Range, _handler)


def _handler(parent: Parent, setup: _Setup) -> Callable[[_Range], Reply]:
    spawn.prepare(pickle.loads(setup.script))
    work: RangeWork[object] = pickle.loads(setup.work)

    def handle(task: _Range) -> Reply:
        def do() -> Reply:
            def report(number: int) -> None:
                parent.report(Progress(task.task_index, 0, number, 0))

            try:
                return Done.of(task.task_index, pickle.dumps(work.run(task.first, task.end, report)))
            except HeadraceError:
                raise
            except Exception as error:
                told = traceback.format_exc()
                try:
                    error.add_note(f"in a worker process:\n{told}")
                    pickle.loads(pickle.dumps(error))
                except Exception:  # an error that cannot be pickled
                    return Failed.of(
                        task.task_index, WorkerError(f"{type(error).__name__} in a worker process:\n{told}")
                    )
                return Failed.of(task.task_index, error)

        return attempted(task.task_index, do)

    return handle
