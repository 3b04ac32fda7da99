"""A job: offline work that is planned in a folder or at a URL, and whose tasks any process on any host may do.

    plan.json                what kind of work it is, and all that decides it
    phases of tasks          each task is a pure function of the plan and of the phases before it
    RESULTS of a phase       receipts, claims, and the files of the attempts; see `receipts`

A phase is over when each of its tasks has a receipt. At the end, one process puts the output into place.

See `headrace.engine.planning` for how it is planned and opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from headrace.engine.poison import AnyTask
from headrace.engine.receipts import Receipt, Receipts
from headrace.engine.serving import Failed
from headrace.engine.shared import Delivered, Shared
from headrace.errors import ConfigError, OutputError
from headrace.io import AnyPath

PHASE_PREFIX: Final = "phase-"
"""How the names of the folders of phases begin."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that may be done now, in any order."""

    name: str
    """Also the name of the folder of its results."""

    num_tasks: int
    first_task: int = 0
    """The tasks before it are not part of the phase."""

    total_bytes: int = 0
    """What the counts ``bytes`` of all receipts will add up to; 0 if that is not known."""

    is_light: bool = False
    """Whether each process does its tasks itself, without worker processes, which would take longer to start."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a receipt says of a task."""

    files: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    value: Any = None
    error: str = ""
    """Why the task failed, if it fails on every host: a bad record, say."""


Tell = Callable[[Mapping[str, int]], None]
"""Called now and then with what a task has counted so far, as its receipt will."""

Do = Callable[[Any, Path, Tell], TaskResult]
"""Does a task: it puts its files into a folder, and returns what its receipt says."""


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """What a job calls to tell how far it is."""

    tasks: Callable[[TaskProgress], None] = lambda progress: None
    """Called a few times a second while tasks are done."""

    progress: Callable[..., None] = lambda *told, **more: None
    """Called a few times a second at the end of a job, as ``ProgressBar.update`` of the command line."""

    notice: Callable[[str], None] = lambda message: None
    """Called with what a user should know."""


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a phase of a job is, on all hosts."""

    phase: str
    done: int
    """Tasks that have a receipt."""

    num_tasks: int
    counts: dict[str, int]
    """Sums over the receipts, and over what tasks of this process have counted that are under way."""

    total_bytes: int
    """What the count ``bytes`` will add up to; 0 if that is not known."""

    @classmethod
    def of(cls, phase: Phase, receipts: Receipts, under_way: Iterable[Mapping[str, int]] = ()) -> TaskProgress:
        """Return how far a phase is, as far as its receipts are known."""
        counts = receipts.counts.copy()
        for one in under_way:
            counts.update(one)
        return cls(
            phase=phase.name,
            done=len(receipts.done),
            num_tasks=len(receipts.tasks),
            counts=dict(counts),
            total_bytes=phase.total_bytes,
        )


class Job(ABC):
    """One kind of work.

    Args:
        output: the output, a folder or a URL.
        shared: what the processes of the job share. On this host, ``work`` is its folder.
    """

    kind: ClassVar[str]
    main: ClassVar[str]
    """The function that serves a worker process, as ``module:function``; see `WorkerProcesses`."""

    serve: Callable[[int], None] | None = None
    """What takes its place in a worker that is a fork of this process, and uses what is loaded here."""

    def __init__(self, output: AnyPath, shared: Shared) -> None:
        self.output: AnyPath = output
        self.shared = shared
        self.work = shared.here
        self._receipts: dict[str, Receipts] = {}

    def tell(self, phase: Phase, show: Show) -> None:  # noqa: B027 -- few kinds of work need it
        """Tell what a user should know of a phase that is over; a process that drives the job calls this."""

    @abstractmethod
    def finish(self, show: Show) -> Any:
        """Put the output into place once all phases are over; return the report of the work.

        Of two processes that finish at the same time, one succeeds.
        """

    @abstractmethod
    def phase(self) -> Phase | None:
        """Return the phase whose tasks may be done now; None if all phases are over."""

    @abstractmethod
    def tasks(self, phase: Phase) -> Sequence[AnyTask]:
        """Return the tasks of a phase. The index of each is its place."""

    @abstractmethod
    def setup(self, phase: Phase, results: Path) -> msgspec.Struct:
        """Return the first message to a worker that puts its files into the folder ``results``."""

    def doing(self, phase: Phase) -> AbstractContextManager[Do]:
        """Open what tasks of a phase need, and return the function that does one in this process.

        Raises:
            ConfigError: this kind of work leaves that to worker processes.
        """
        raise ConfigError(f"{self.kind}: its tasks are done in worker processes alone: name at least one")

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        """Return what the receipt of a task says that failed, if that is final, and the same on every host.

        Raises:
            Exception: the error, after which the task may be tried again.
        """
        raise failed.error()

    def check(self, phase: Phase, receipts: Receipts) -> None:  # noqa: B027 -- few kinds of work need it
        """Look at the receipts of a phase whenever there are new ones; what this raises ends the work."""

    def committed(self, phase: Phase, receipt: Receipt) -> None:  # noqa: B027 -- few kinds of work need it
        """Take note that this process has created a receipt, whose task may have used up what others have left."""

    def check_inputs(self) -> None:  # noqa: B027 -- few kinds of work need it
        """Raise InputError if an input has changed since the job was planned."""

    @property
    def is_planned(self) -> bool:
        """False once another process has finished the job."""
        return self.shared.is_planned()

    def publish(self, folder: str, receipt: Receipt) -> Receipt:
        """Show the files of a task to all, before its receipt is created; in any thread.

        Args:
            folder: the folder of the attempt, in the work folder.
            receipt: the receipt.

        Returns:
            The receipt to create.

        Raises:
            OutputError: the system or the store refuses it.
        """
        self.shared.publish(folder, receipt.files)
        return receipt

    def gather(self, phases: Iterable[Receipts], sums: Mapping[str, tuple[int, str]], target: Path) -> None:
        """See that all files of the output are in their place, see `Shared.gather`.

        Args:
            phases: the receipts of the tasks that have made them.
            sums: size and xxh3_128 of each file, by its name.
            target: the folder of the output on this host.

        Raises:
            OutputError, StoreError: a file is not there any more, or is another one; or no task has made it.
        """
        made = {name: (one, receipt) for one in phases for receipt in one.done.values() for name in receipt.files}
        if missing := sums.keys() - made.keys():
            raise OutputError(f"{self.output}: no task has made {min(missing)}. Please report this defect.")
        delivered = []
        for name, (size, xxh3_128) in sums.items():
            receipts, receipt = made[name]
            etag = receipt.etags.get(name, "")
            folder = f"{receipts.name}/{receipt.attempt}"
            delivered.append(Delivered(name=name, folder=folder, size=size, xxh3_128=xxh3_128, etag=etag))
        self.shared.gather(delivered, target)

    def receipts(self, phase: Phase) -> Receipts:
        """Return the receipts of a phase, as far as this process knows them.

        What it has seen once it keeps: a shared folder may show a file to one listing and not to the next.
        """
        if phase.name not in self._receipts:
            self._receipts[phase.name] = receipts_of(self.shared, phase)
        return self._receipts[phase.name]

    def refreshed(self, phase: Phase) -> Receipts:
        """Return the receipts of a phase that are there now; raises what `Receipts.refresh` raises."""
        receipts = self.receipts(phase)
        receipts.refresh()
        return receipts


def receipts_of(shared: Shared, phase: Phase) -> Receipts:
    """Return the receipts of a phase, not read yet."""
    return Receipts(shared, f"{PHASE_PREFIX}{phase.name}", phase.first_task, phase.num_tasks)
