"""Jobs whose tasks follow from the plan alone: how their tasks are done, in this process or in worker processes.

A kind of work of this sort gives a struct that is its plan, with the tasks and the function that does them, see
`TaskPlan`. It knows nothing of processes: those that do its tasks are here.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from multiprocessing import spawn
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from headrace.engine.job import Do, Job, Phase, TaskResult
from headrace.engine.poison import AnyTask
from headrace.engine.receipts import Receipt, Receipts
from headrace.engine.serving import Done, Failed, Parent, Progress, Reply, attempted, serve
from headrace.engine.shared import Shared
from headrace.errors import ConfigError, HeadraceError, OutputError, WorkerError
from headrace.io import AnyPath, output_errors
from headrace.io.finding import each

T = TypeVar("T")

MAIN: Final = "headrace.engine.tasks:main"
_OF_SCRIPT: Final = ("sys_path", "sys_argv", "dir", "init_main_from_name", "init_main_from_path")


class SpanTask(msgspec.Struct, frozen=True):
    """Do the samples ``[first, end)``."""

    task_index: int
    first: int
    end: int

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return f"samples {self.first:,} to {self.end:,}"

    @property
    def name(self) -> str:
        """The name of its result."""
        return f"{self.first}-{self.end}"


def spans(num_samples: int, size: int) -> list[SpanTask]:
    """Return tasks of at most ``size`` samples, which hold all of them in order."""
    return [
        SpanTask(index, first, min(first + size, num_samples))
        for index, first in enumerate(range(0, num_samples, size))
    ]


class TaskPlan(Protocol):
    """What ``plan.json`` keeps of such a kind of work: a `msgspec.Struct`."""

    @property
    def phase(self) -> Phase:
        """The only phase. Its name holds a hash of the plan, so that no process of another plan shares its results."""

    @property
    def tasks(self) -> Sequence[AnyTask]:
        """All tasks. The index of each is its place."""

    def doing(self, given: Any) -> AbstractContextManager[Do]:
        """Open what the tasks need, and return the function that does one; a process calls this once.

        Args:
            given: `PlannedJob.given`.
        """


class PlannedJob(Job):
    """A job of one phase, whose tasks follow from its plan alone.

    Args:
        output: the output.
        shared: what the processes of the job share.
        plan: its plan, as JSON.
        given: what tasks need and no plan can hold, such as credentials: it is for this process and its workers.
    """

    main = MAIN
    plan_type: ClassVar[type[Any]]
    delivers: ClassVar[bool] = False
    """Whether the files of a task are files of the output, by their names there."""

    num_results: ClassVar[int] = 0
    """How many files of a task, which come first, are none of the output, but results that the end needs."""

    final: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of a task that are the same on every host."""

    given_name: ClassVar[str] = "what is given"
    """What errors call that which is given."""

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw, given: Any = None) -> None:
        self.plan: Any = msgspec.json.decode(plan, type=self.plan_type)
        self.given = given
        super().__init__(output, shared)
        self._phase: Phase = self.plan.phase
        self._tasks: Sequence[AnyTask] = self.plan.tasks

    def phase(self) -> Phase | None:
        """See `Job`."""
        return self._phase if self.known_receipts().open_tasks and self.is_planned else None

    def tasks(self, phase: Phase) -> Sequence[AnyTask]:
        """See `Job`."""
        return self._tasks

    def known_receipts(self) -> Receipts:
        """Return all receipts that are there now."""
        return self.refreshed(self._phase)

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        """See `Job`."""
        error = failed.error()
        if isinstance(error, self.final):
            return TaskResult(error=str(error))
        raise error

    def doing(self, phase: Phase) -> AbstractContextManager[Do]:
        """See `Job`."""
        found: AbstractContextManager[Do] = self.plan.doing(self.given)
        return found

    def publish(self, folder: str, receipt: Receipt) -> Receipt:
        """See `Job`."""
        if not self.delivers:
            return super().publish(folder, receipt)
        self.shared.publish(folder, receipt.files[: self.num_results])
        return msgspec.structs.replace(receipt, etags=self.shared.deliver(folder, receipt.files[self.num_results :]))

    def results(self, read: Callable[[Path], T | None]) -> Generator[T]:
        """Yield what is read of the first file of each task, in their order. One that was lost is made again.

        Args:
            read: reads a file on this host; returns None if it is not there, or not whole.

        Raises:
            OutputError, StoreError: a file cannot be read or written, or is not at its URL any more.
        """
        receipts, nothing = self.known_receipts(), lambda counts: None
        made = [receipts.done[task.task_index] for task in self.plan.tasks]
        folder = receipts.folder.absolute()
        wanted = {folder / one.attempt / one.files[0]: receipts.away(one, one.files[0]) for one in made}
        with ExitStack() as stack:
            do: Do | None = None
            for parent in {path.parent for path in wanted}:
                with output_errors(parent, "make the folder"):
                    parent.mkdir(parents=True, exist_ok=True)
            fetched = each(lambda path: self.shared.fetch(wanted[path], path), list(wanted), [self.shared.address])
            for task, path, _ in zip(self.plan.tasks, wanted, stack.enter_context(closing(fetched)), strict=True):
                if (found := read(path)) is None:
                    do = do or stack.enter_context(self.plan.doing(self.given))
                    do(task, path.parent, nothing)
                    found = read(path)
                if found is None:
                    raise OutputError(f"{path}: cannot be read back; run the same command again")
                yield found

    def setup(self, phase: Phase, results: Path) -> msgspec.Struct:
        """See `Job`.

        Raises:
            ConfigError: what is given cannot be pickled.
        """
        try:
            given = pickle.dumps(self.given)
        except Exception as error:  # the user's classes may raise anything
            raise ConfigError(
                f"{self.given_name} cannot be sent to processes: {type(error).__name__}: {error}; define its class at"
                " the top of a module, without locks or open files, or use this process alone, workers=1"
            ) from error
        script = b""
        if b"__main__" in given:  # else the calling script, which may do anything, is not run again
            found = spawn.get_preparation_data("headrace").items()
            script = pickle.dumps({name: value for name, value in found if name in _OF_SCRIPT})
        return _Setup(
            parent=os.getpid(),
            script=script,
            plan_type=f"{self.plan_type.__module__}:{self.plan_type.__qualname__}",
            plan=msgspec.json.encode(self.plan),
            results=str(results),
            given=given,
        )


class _Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    script: bytes
    """How to import the calling script, as ``multiprocessing`` does, since what is given may be of its classes."""

    plan_type: str
    plan: bytes
    results: str
    given: bytes


class _Order(msgspec.Struct, frozen=True):
    """A task, of which the plan says more."""

    task_index: int


class _Worker:
    """Does tasks in a worker process."""

    def __init__(self, parent: Parent, setup: _Setup) -> None:
        if setup.script:
            spawn.prepare(pickle.loads(setup.script))
        self._parent = parent
        self._plan: TaskPlan = msgspec.json.decode(setup.plan, type=resolve_name(setup.plan_type))
        self._given = pickle.loads(setup.given)
        self._results = Path(setup.results)
        self._opened = ExitStack()
        self._tasks: Sequence[AnyTask] = ()
        self._do: Do | None = None

    def handle(self, order: _Order) -> Reply:
        """Do a task; any error becomes a `Failed`."""
        return attempted(order.task_index, lambda: self._done(order.task_index))

    def _done(self, task_index: int) -> Reply:
        try:
            return Done.of(task_index, self._do_task(task_index))
        except HeadraceError:
            raise
        except Exception as error:
            return Failed.of(task_index, _as_sent(error))

    def _do_task(self, task_index: int) -> TaskResult:
        if self._do is None:
            self._do = self._opened.enter_context(self._plan.doing(self._given))
            self._tasks = self._plan.tasks

        def tell(counts: Mapping[str, int]) -> None:
            self._parent.report(Progress(task_index, dict(counts)))

        return self._do(self._tasks[task_index], self._results, tell)


def _as_sent(error: Exception) -> Exception:
    """Return an error, which the user's code may have raised, as another process can raise it."""
    told = traceback.format_exc()
    try:
        error.add_note(f"in a worker process:\n{told}")
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error that cannot be pickled
        return WorkerError(f"{type(error).__name__} in a worker process:\n{told}")
    return error


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, _Setup, _Order, lambda parent, setup: _Worker(parent, setup).handle)
