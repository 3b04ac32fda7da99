"""A job: offline work that is planned in a folder or at a URL, and whose tasks any process on any host may do.

    plan.json                what kind of work it is, and all that decides it
    phases of tasks          each task is a pure function of the plan and of the phases before it
    RESULTS of a phase       receipts, claims, and the files of the attempts; see `receipts`

A phase is over when each of its tasks has a receipt. At the end, one process puts the output into place.

Which kinds of work there are is not known here: `open_job` imports the class that the plan names from a table of its
caller, see `KindOfWork`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Final

import msgspec

from headrace.engine.poison import AnyTask
from headrace.engine.receipts import Receipt, Receipts
from headrace.engine.serving import Failed
from headrace.engine.shared import Delivered, Shared, SharedFolder, sync_files
from headrace.engine.work_folder import PLAN_NAME
from headrace.errors import ConfigError, OutputError
from headrace.io import AnyPath, atomic_write, hash_bytes, is_url, output_errors, path_at, read_small

PHASE_PREFIX: Final = "phase-"
"""How the names of the folders of phases begin."""

_OBJECTS: Final = "headrace.engine.shared_objects"  # loaded when the first URL comes

PLAN_VERSION: Final = 4
"""Version of the plan and of the receipts; it increases with each change of their format."""


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``plan.json``."""

    version: int = PLAN_VERSION
    kind: str
    software: dict[str, str]
    """Versions that decide the results: a process with another one may do no task."""

    folder: str
    """Where the job was planned; modules of the user are imported from there, too."""

    plan: msgspec.Raw
    """What the kind of work keeps."""

    digest: str = ""
    """The xxh3_128 of what the kind of work keeps, as JSON without blanks."""

    name: str = ""
    """At a URL, a name that no other job has: below it lies what this one shares."""


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

    progress: Callable[[Any], None] = lambda progress: None
    """Called a few times a second at the end of a job, with its progress as the kind of work reports it."""

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


def receipts_of(work: Path | Shared, phase: Phase) -> Receipts:
    """Return the receipts of a phase in a work folder, or in what else is shared, not read yet."""
    shared = SharedFolder(work) if isinstance(work, Path) else work
    return Receipts(shared, f"{PHASE_PREFIX}{phase.name}", phase.first_task, phase.num_tasks)


class NewPlan(msgspec.Struct, frozen=True):
    """A job to be planned."""

    kind: str
    plan: Any
    """What the kind of work keeps."""

    phases: Sequence[Phase] = ()
    """The phases of which tasks that failed before are to be tried again."""

    software: Mapping[str, str] = {}
    """Versions that decide the results, besides those of every kind of work."""

    files: Mapping[str, bytes] = {}
    """Further files that each process finds in its work folder."""

    made: Sequence[str] = ()
    """Names of files that are made already, of which each task needs only some, see `Shared.place`."""


def save_plan(work: Path, new: NewPlan) -> None:
    """Write ``plan.json``, and what belongs to it.

    Raises:
        OutputError: the system refuses a write.
    """
    for name, data in new.files.items():
        atomic_write(work / name, data)
    sync_files(work, new.made)
    for phase in new.phases:
        receipts = receipts_of(work, phase)
        receipts.refresh()
        receipts.forget_failed()
    atomic_write(work / PLAN_NAME, encoded_plan(new))


def encoded_plan(new: NewPlan, name: str = "") -> bytes:
    """Return the content of ``plan.json``."""
    content = msgspec.json.encode(new.plan)
    found = PlanFile(
        kind=new.kind,
        software={**own_software(), **new.software},
        folder=os.getcwd(),  # noqa: PTH109
        plan=msgspec.Raw(content),
        digest=hash_bytes(content),
        name=name,
    )
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


def load_plan(work: Path) -> PlanFile:
    """Read ``plan.json``.

    Raises:
        OutputError: there is none, or it is damaged or of another version.
    """
    path = work / PLAN_NAME
    with output_errors(path, "read the plan"):
        data = read_small(path)
    return decoded_plan(data, path)


def decoded_plan(data: bytes, path: os.PathLike[str] | str) -> PlanFile:
    """Decode ``plan.json``, which was read from a path or a URL; raises OutputError as `load_plan` does."""
    try:
        plan = msgspec.json.decode(data, type=PlanFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    if plan.version != PLAN_VERSION:
        raise OutputError(f"{path}: the plan has version {plan.version}; this Headrace reads version {PLAN_VERSION}")
    if plan.digest != hash_bytes(msgspec.json.format(bytes(plan.plan), indent=-1)):
        raise _damaged(path, "what it says has another hash than when it was written")
    return plan


def _damaged(path: os.PathLike[str] | str, error: object) -> OutputError:
    return OutputError(
        f"{path}: the plan is damaged, or of another version of Headrace: {error}; plan again with --restart"
    )


def own_software() -> dict[str, str]:
    """Return the versions of what every kind of work depends on."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, **{name: _installed(name) for name in ("headrace", "tokenizers", "numpy")}}


def check_software(plan: PlanFile) -> None:
    """Refuse to do tasks of a plan with other software than it was made with.

    Raises:
        ConfigError: a version differs; the message names the host.
    """
    own = own_software()
    wrong = []
    for name, version in plan.software.items():
        found = own.get(name) or _installed(name)
        if found != version:
            wrong.append(f"{name} {found or 'is missing'}, where the plan has {version}")
    if wrong:
        raise ConfigError(
            f"host {platform.node()} has other software than the plan: {'; '.join(wrong)}. Install the versions of the"
            " plan there, or plan again on such a host"
        )


def _installed(name: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


class KindOfWork(msgspec.Struct, frozen=True):
    """What a table of kinds of work says of one."""

    job: str
    """Its class, as ``module:class``."""

    work: Callable[[Path], Path]
    """Returns the work folder of an output, see `inside` and `beside` in `work_folder`."""

    place: Callable[[str], str] = str
    """Returns the URL below which a job lies, see `shared_objects`, if its output is a URL: usually the same."""


def kind_at(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork]) -> str:
    """Return the kind of the job that is planned for an output; empty if none is, or it is completed.

    Raises:
        OutputError: the plan is damaged.
        StoreError: the output is a URL, whose store cannot be reached.
    """
    if is_url(output):
        return next((kind for place in _places(output, kinds) if (kind := _kind_at(place))), "")
    work = _work_of(output, kinds)
    return "" if work is None else load_plan(work).kind


def is_planned(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork]) -> bool:
    """Return whether a job is planned for an output, and not completed; raises as `kind_at`."""
    return bool(kind_at(output, kinds))


def open_job(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork], *, checks_software: bool) -> Job:
    """Open the job that was planned for an output; of several the first in the order of the kinds.

    Args:
        output: the path or the URL of the output.
        kinds: the kinds of work, by their names.
        checks_software: whether this host must have the software of the plan, without which it may do no task.

    Raises:
        OutputError: there is no plan, or it cannot be read.
        StoreError: the output is a URL, whose store cannot be reached.
        ConfigError: the software of this host differs from the plan's.
    """
    if is_url(output):
        places = _places(output, kinds)
        shared = shared_at(next((place for place in places if _kind_at(place)), places[0]))
    else:
        work = _work_of(output, kinds)
        if work is None:
            raise OutputError(
                f"{output}: nothing is planned in this folder, or it is complete: it has no work folder with a"
                f" {PLAN_NAME}"
            )
        shared = SharedFolder(work)
    kind = load_plan(shared.here).kind
    if kind not in kinds:
        raise OutputError(f"{output}: the plan is of kind {kind!r}; this Headrace knows {', '.join(kinds)}")
    return reopened(path_at(output), shared, kinds[kind].job, checks_software=checks_software)


def _work_of(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork]) -> Path | None:
    """Return the work folder of an output that has a plan; the first in the order of the kinds. None if none has."""
    works = dict.fromkeys(kind.work(Path(output)) for kind in kinds.values())
    return next((work for work in works if (work / PLAN_NAME).exists()), None)


def _places(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork]) -> list[str]:
    """Return the URLs below which a job may lie whose output is a URL, in the order of the kinds."""
    return list(dict.fromkeys(kind.place(os.fspath(output)) for kind in kinds.values()))


def _kind_at(place: str) -> str:
    found: str = resolve_name(f"{_OBJECTS}:kind_at")(place)
    return found


def shared_at(address: str) -> Shared:
    """Return what the processes of a job share, given its `Shared.address`, or the URL below which it lies.

    Raises:
        OutputError: nothing is planned at the URL, or the plan cannot be read.
        StoreError: its store cannot be reached.
    """
    if not is_url(address):
        return SharedFolder(Path(address))
    found: Shared = resolve_name(f"{_OBJECTS}:opened")(address)
    return found


def reopened(output: AnyPath, shared: Shared, kind: str, *, checks_software: bool = True) -> Job:
    """Open a job whose class is known, as ``module:class``; raises what `open_job` raises."""
    plan = load_plan(shared.here)
    if checks_software:
        check_software(plan)
    if plan.folder not in sys.path:
        sys.path.append(plan.folder)
    module, _, name = kind.partition(":")
    try:
        made: Job = getattr(importlib.import_module(module), name)(output, shared, plan.plan)
    except msgspec.DecodeError as error:
        raise _damaged(shared.here / PLAN_NAME, error) from error
    return made
