"""Plans of jobs: how one is written, where it lies, and how a job is opened from it.

    plan.json      what kind of work it is, and all that decides it
    JobPlace       where it lies: a work folder, or the URL of one, for which see `headrace.engine.shared_objects`
    KindOfWork     the class of a kind of work, and the work folder of an output

Which kinds of work there are is not known here: `open_job` imports the class that the plan names from a table of its
caller.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import msgspec

from headrace.engine.job import Job, Phase, receipts_of
from headrace.engine.shared import Shared, sync_files
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder
from headrace.errors import ConfigError, OutputError
from headrace.io import AnyPath, atomic_write, hash_bytes, output_errors, path_at, read_small

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


class JobPlace:
    """Where one job at a time is planned: a work folder, which need not be there yet.

    Below a URL it is a `headrace.engine.shared_objects.JobUrl`.
    """

    def __init__(self, work: Path) -> None:
        self.work = work

    def planned(self) -> PlanFile | None:
        """Return the plan that is there; None if there is none, as after the job is completed.

        Raises:
            OutputError: it is damaged, of another version, or cannot be read.
            StoreError: the store of a URL cannot be reached.
        """
        path = self.work / PLAN_NAME
        with output_errors(path, "read the plan"):
            try:
                data = read_small(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return decoded_plan(data, path)

    def save(self, new: NewPlan, here: Path = Path()) -> None:
        """Write a plan, in place of one that is there, and what belongs to it.

        Args:
            new: the plan.
            here: the folder on this host with the files that are made already; those of a folder lie in it.

        Raises:
            OutputError, StoreError: the system or the store refuses it.
        """
        with output_errors(self.work, "make the folder"):
            self.work.mkdir(parents=True, exist_ok=True)
        for name, data in new.files.items():
            atomic_write(self.work / name, data)
        sync_files(self.work, new.made)
        for phase in new.phases:
            receipts_of(self.shared(), phase).forget_failed()
        atomic_write(self.work / PLAN_NAME, encoded_plan(new))

    def shared(self) -> Shared:
        """Return what the processes of the job that is planned there share.

        Raises:
            OutputError: nothing is planned at a URL.
            StoreError: its store cannot be reached.
        """
        return Shared(self.work)

    def clear(self, keep: Collection[str] = ()) -> None:
        """Remove everything but these files. The plan goes first, so that no other process begins a task any more.

        Raises:
            OutputError, StoreError: the system or the store refuses it.
        """
        with output_errors(self.work, "clear"):
            if self.work.is_dir():
                ClaimedFolder(self.work, "").clear(keep)


def job_at(work: AnyPath) -> JobPlace:
    """Return the place of a job, given its work folder, or the URL of one."""
    if isinstance(work, Path):
        return JobPlace(work)
    # What talks to object stores is loaded when the first URL comes.
    made: JobPlace = resolve_name("headrace.engine.shared_objects:JobUrl")(work)
    return made


class KindOfWork(msgspec.Struct, frozen=True):
    """What a table of kinds of work says of one."""

    job: str
    """Its class, as ``module:class``."""

    work: Callable[[AnyPath], AnyPath]
    """Returns the work folder of an output, or its URL, see `inside` and `beside` in `work_folder`."""


def kind_at(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork]) -> str:
    """Return the kind of the job that is planned for an output; empty if none is, or it is completed.

    Raises:
        OutputError: the plan is damaged.
        StoreError: the output is a URL, whose store cannot be reached.
    """
    found = _planned(output, kinds)
    return "" if found is None else found[1].kind


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
    found = _planned(output, kinds)
    if found is None:
        raise OutputError(
            f"{output}: nothing is planned there, or it is complete: it has no work folder with a {PLAN_NAME}"
        )
    place, plan = found
    if plan.kind not in kinds:
        raise OutputError(f"{output}: the plan is of kind {plan.kind!r}; this Headrace knows {', '.join(kinds)}")
    return reopened(path_at(output), place.shared(), kinds[plan.kind].job, checks_software=checks_software)


def _planned(output: str | os.PathLike[str], kinds: Mapping[str, KindOfWork]) -> tuple[JobPlace, PlanFile] | None:
    """Return where a job is planned for an output, and its plan; the first in the order of the kinds."""
    path = path_at(output)
    for work in dict.fromkeys(kind.work(path) for kind in kinds.values()):
        place = job_at(work)
        if (plan := place.planned()) is not None:
            return place, plan
    return None


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


def load_plan(work: Path) -> PlanFile:
    """Read the plan of a job that is known to be planned; raises OutputError if there is none, and as `JobPlace`."""
    plan = JobPlace(work).planned()
    if plan is None:
        raise OutputError(f"{work / PLAN_NAME}: cannot read the plan: it is not there any more")
    return plan
