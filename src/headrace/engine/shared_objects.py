"""A job at a URL, so that no folder has to be seen by all of its processes: `SharedObjects` is what these share.

WORK is the URL of the work folder, see `headrace.engine.planning.KindOfWork`; files of the output go to the folder that
holds it, each to its place:

    WORK/run.json         what decides the bytes of the output, if a run writes one: created first, and removed last
         plan.json        the plan, which names the job
         job-NAME/...     what lies right in a local work folder: files that the plan refers to, receipts, claims,
                          notes, and the results of attempts

As long as there is a ``run.json`` and no manifest, the output is not complete, and nothing opens it as a store. No
other job has the same NAME: a process of a job that was discarded cannot get in the way of the next one. What is
created once is a PUT with ``If-None-Match: *``. Each process makes its files in a scratch folder of its own,

    SCRATCH/task.HOST.PROCESS.RANDOM/  beside the scratch folders of outputs that one host makes

and removes it at its end. One that a killed process has left is removed by the next process on that host.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace.engine.heartbeat import host_and_process, process_exists
from headrace.engine.job import receipts_of
from headrace.engine.planning import JobPlace, NewPlan, PlanFile, decoded_plan, encoded_plan
from headrace.engine.shared import Delivered, LostError, Shared, lost, remove_files
from headrace.engine.work_folder import PLAN_NAME, RUN_NAME, outputs_folder
from headrace.errors import HeadraceError, OutputError
from headrace.io import RemotePath, atomic_write, file_sum, output_errors, path_at, reader_of, unique_name
from headrace.io.objects.writer import ObjectWriter, writer_of
from headrace.io.remote import Status

_PREFIX: Final = "task."
_FILES: Final = "plan"
_AT_ONCE: Final = 2


class SharedObjects(Shared):
    """What the processes of a job share below a URL.

    Args:
        work: the URL of its work folder.
        name: the name of the job, as its plan says.
        writer: what reaches the store.
        here: the folder in which this process makes its files.
    """

    is_folder = False
    beat_s = 15.0
    pause_s = 2.0

    def __init__(self, work: str, name: str, writer: ObjectWriter, here: Path) -> None:
        self._work = work
        self._output = work.rpartition("/")[0]
        self._name = name
        self._base = f"{work}/job-{name}"
        self._writer = writer
        self._listed: dict[str, Status] = {}
        self.here = here

    @property
    def address(self) -> str:
        """See `Shared`: the URL of the work folder."""
        return self._work

    def is_planned(self) -> bool:
        """See `Shared`."""
        plan = _plan_at(self._work, self._writer)
        return plan is not None and plan.name == self._name

    def make(self, folders: Iterable[str]) -> None:
        """See `Shared`: objects need no folders."""

    def create(self, name: str, data: bytes, *, lasts: bool = True) -> bool:
        """See `Shared`. It is safe in threads."""
        return self._anew().create(self._at(name), data) is None

    def read(self, name: str) -> bytes | None:
        """See `Shared`."""
        return self._writer.read(self._at(name))

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """See `Shared`. What was listed last needs no look-up."""
        known = {self._at(name): self._listed[name] for name in names if name in self._listed}
        found = self._writer.read_all(known)
        return {name: found[self._at(name)] for name in names if self._at(name) in found}

    def names(self, folder: str) -> list[str]:
        """See `Shared`."""
        found = self._writer.listed(self._at(folder))
        self._listed = {f"{folder}/{name}": status for name, status in found.items()}
        return list(found)

    def remove(self, name: str) -> None:
        """See `Shared`."""
        self._writer.delete([self._at(name)])

    def note(self, name: str, data: bytes) -> None:
        """See `Shared`."""
        with contextlib.suppress(HeadraceError):
            self._writer.put({self._at(name): data})

    def notes(self, folder: str) -> dict[str, bytes]:
        """See `Shared`. A note that is rewritten meanwhile is read once more."""
        place, found = self._at(folder), dict[str, bytes]()
        changed: list[str] = []
        with contextlib.suppress(HeadraceError):
            listed = {f"{place}/{name}": status for name, status in self._writer.listed(place).items()}
            found = self._writer.read_all(listed, on_error=lambda url, error: changed.append(url))
            for url in changed:
                if (data := self._writer.read(url)) is not None:
                    found[url] = data
        return {url.removeprefix(f"{place}/"): data for url, data in sorted(found.items())}

    def versions(self, folder: str) -> Mapping[str, object]:
        """See `Shared`: ETag and time."""
        found: dict[str, object] = {}
        with contextlib.suppress(HeadraceError):
            found.update(self._writer.listed(self._at(folder)))
        return found

    def publish(self, folder: str, names: Sequence[str]) -> None:
        """See `Shared`: upload them, and remove them here. It is safe in threads."""
        place = self.here / folder
        files = [path for name in names for path in _files(place / name)]
        self.show({f"{folder}/{path.relative_to(place).as_posix()}": path for path in files})
        remove_files(place, names)

    def show(self, files: Mapping[str, Path]) -> None:
        """Upload files by the names under which all know them; raises as `publish`."""
        writer, names = self._anew(), list(files)
        for at in range(0, len(names), _AT_ONCE):  # each is in memory while it is sent
            writer.put_files({self._at(name): files[name] for name in names[at : at + _AT_ONCE]})

    def withdraw(self, folder: str, names: Sequence[str]) -> None:
        """See `Shared`."""
        writer = self._anew()
        below = [
            one for one in writer.statuses(self._at(folder)) if any(f"{one}/".startswith(f"{name}/") for name in names)
        ]
        writer.delete([self._at(f"{folder}/{one}") for one in below])

    def place(self, name: str) -> str:
        """See `Shared`."""
        return self._at(name)

    def fetch(self, name: str, path: Path) -> None:
        """See `Shared`. It is safe in threads."""
        if not path.exists():
            self._anew().fetch(self._at(name), path)

    def deliver(self, folder: str, names: Sequence[str]) -> dict[str, str]:
        """See `Shared`: upload them to where they stay, and remove them here. It is safe in threads.

        A process of a job that is over delivers nothing; what it has begun to send before is noticed by `gather`.
        """
        if not self.is_planned():
            return {}
        place, etags = self.here / folder, dict[str, str]()
        for at in range(0, len(names), _AT_ONCE):
            some = {f"{self._output}/{name}": place / name for name in names[at : at + _AT_ONCE]}
            etags |= {url: status.etag for url, status in self._anew().put_files(some).items()}
        remove_files(place, names)
        return {url.removeprefix(f"{self._output}/"): etag for url, etag in etags.items()}

    def gather(self, delivered: Iterable[Delivered], target: Path) -> None:
        """See `Shared`: they are there. One that was written again is read, unless the store says that it is the same.

        Another process of this job writes the same bytes, and one of a job that was discarded may write others.
        """
        found = self._writer.statuses(self._output)
        for file in delivered:
            status = found.get(file.name)
            url = f"{self._output}/{file.name}"
            if status is None or status.size != file.size:
                raise lost(url, file, None if status is None else status.size, "remove what is below the URL")
            if file.etag != status.etag and file_sum(path_at(url, reader_of(self._writer.storage))).xxh3_128 != (
                file.xxh3_128
            ):
                raise LostError(
                    f"{url}: was written by a task, and another run has written other content to the same place; remove"
                    " what is below the URL, and run again"
                )

    def sweep(self) -> None:
        """See `Shared`. No other process needs what is left of a job that is over, and of others if no run is there."""
        with contextlib.suppress(HeadraceError):
            if self.is_planned():
                return
            left = [f"{self._work}/{name}" for name in self._writer.statuses(self._work) if name.startswith("job-")]
            is_free = all(self._writer.read(f"{self._work}/{name}") is None for name in (RUN_NAME, PLAN_NAME))
            self._writer.delete([one for one in left if is_free or one.startswith(f"{self._base}/")])

    def mirror(self) -> None:
        """Bring the files of the plan to ``here``.

        Raises:
            OutputError, StoreError: one cannot be read or written.
        """
        for name in self.names(_FILES):
            self.fetch(f"{_FILES}/{name}", self.here / name)
        if (run := self._writer.read(f"{self._work}/{RUN_NAME}")) is not None:
            atomic_write(self.here / RUN_NAME, run)

    def _anew(self) -> ObjectWriter:
        """Return what reaches the store and has looked up nothing, for use in any thread."""
        return ObjectWriter(self._writer.storage)

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}"


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


class JobUrl(JobPlace):
    """The `headrace.engine.planning.JobPlace` of an output at a URL.

    Args:
        work: the URL of its work folder, with what reaches its store.
    """

    def __init__(self, work: RemotePath) -> None:
        self.url = str(work)
        self.writer = writer_of(work)

    def planned(self) -> PlanFile | None:
        """See `headrace.engine.planning.JobPlace`."""
        return _plan_at(self.url, self.writer)

    def save(self, new: NewPlan, here: Path = Path()) -> None:
        """See `headrace.engine.planning.JobPlace`. A plan that is there keeps its name."""
        writer, where = self.writer, f"{self.url}/{PLAN_NAME}"
        before = self.planned()
        name = unique_name() if before is None else before.name
        while True:
            shared = SharedObjects(self.url, name, writer, Path())
            writer.put({shared.place(f"{_FILES}/{file}"): data for file, data in new.files.items()})
            shared.show({made: here / made for made in new.made})
            for phase in new.phases if before is not None else ():
                receipts_of(shared, phase).forget_failed()
            encoded = encoded_plan(new, name)
            if before is not None:
                writer.put({where: encoded})  # the software may be another one now
                return
            # Of two processes that plan the same at the same time, one names the job.
            if (other := writer.create(where, encoded)) is None:
                writer.check_creation(where, encoded)
                return
            before = decoded_plan(other, where)
            name = before.name

    def shared(self) -> SharedObjects:
        """See `headrace.engine.planning.JobPlace`. The files of the plan are brought to this host."""
        where = f"{self.url}/{PLAN_NAME}"
        data = self.writer.read(where)
        if data is None:
            raise OutputError(f"{self.url}: nothing is planned there, or it is complete: there is no {where}")
        plan = decoded_plan(data, where)
        here = own_folder(self.url)
        shared = SharedObjects(self.url, plan.name, self.writer, here)
        atomic_write(here / PLAN_NAME, data)
        shared.mirror()
        remove_with(shared, here)
        return shared

    def clear(self, keep: Collection[str] = ()) -> None:
        """See `headrace.engine.planning.JobPlace`."""
        self.remove_below(self.url, keep)

    def remove_below(self, url: str, keep: Collection[str] = ()) -> None:
        """Remove all objects below the URL of the output, or of the work folder: the plan first, ``run.json`` last."""
        ends = [f"{self.url}/{PLAN_NAME}", f"{self.url}/{RUN_NAME}"]
        found = [one for name in self.writer.statuses(url) if name not in keep and (one := f"{url}/{name}") not in ends]
        for some in (ends[:1], found, ends[1:]):
            self.writer.delete(some)


def _plan_at(work: str, writer: ObjectWriter) -> PlanFile | None:
    where = f"{work}/{PLAN_NAME}"
    data = writer.read(where)
    return None if data is None else decoded_plan(data, where)


def own_folder(url: str) -> Path:
    """Make a folder on this host for this process, and remove those of processes that were killed.

    Raises:
        ConfigError: there is no home folder.
        OutputError: the system refuses the folder.
    """
    remove_killed(url)
    folder = outputs_folder(url) / f"{_PREFIX}{unique_name()}"
    with output_errors(folder, "make the scratch folder"):
        folder.mkdir(parents=True)
    return folder


def remove_with(owner: object, folder: Path) -> None:
    """Remove a folder of this process when nobody has this object any more, or at the end of the process."""
    weakref.finalize(owner, _remove, folder, os.getpid())


def remove_killed(url: str) -> None:
    """Remove the scratch folders of processes that were killed on this host; ConfigError if there is no home folder."""
    for left in outputs_folder(url).glob(f"{_PREFIX}*"):
        host, process = host_and_process(left.name.removeprefix(_PREFIX))
        if host == platform.node() and not process_exists(process):
            shutil.rmtree(left, ignore_errors=True)


def _remove(folder: Path, process: int) -> None:
    """Remove the folder of a process, unless a fork of it ends."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
