"""The hidden folder of a run, ``.nv-meta/.headrace``, and the worker processes that read shards and files.

The folder of a dataset at a URL lies on this host, see `objects`, where the plan and what other processes read lie at
the URL.

    lock          held by the run
    plan.json     what processes on any hosts read, if that is left to them, see `job`
    phase-*/      what they have read
    scans/        one file for each shard that was read; the next run continues from there
    staged/       the new files
    commit        what is still to be moved and removed; once it exists the run is complete, and the next run carries it
                  out if this one is killed

With one worker the shards are read in this process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import Final

import msgspec

from headrace.engine.job import Phase, TaskResult, load_plan, receipts_of, save_plan
from headrace.engine.processes import REPORT_S, RUN_AHEAD, WorkerProcesses, run_tasks
from headrace.engine.serving import (
    Done,
    Failed,
    Progress,
    Reply,
    attempted,
    load,
    save,
    serve,
)
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder, remove_work
from headrace.errors import HeadraceError
from headrace.io import AnyPath, hash_bytes, is_url, output_errors, sync_folder
from headrace.preparing.energon.media import MediaTask, media_path, read_media
from headrace.preparing.energon.options import EnergonOptions, MediaFilter
from headrace.preparing.energon.scanning import (
    FoundTar,
    ShardScan,
    is_tar_index_right,
    scan_path,
    scan_tar,
    write_tar_index,
)
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """The last steps of a run, once all new files are ready.

    Attributes:
        remove: files of ``.nv-meta`` that are removed first: without them no reader opens the rest as a dataset.
        indexed: shards whose ``.tar.idx`` is replaced if it differs.
        moves: staged files of ``.nv-meta``, in the order in which they are moved into place.
    """

    remove: tuple[str, ...]
    indexed: tuple[str, ...]
    moves: tuple[str, ...]


class WorkFolder(ABC):
    """The hidden folder. As a context manager it locks the folder for one run; scans stay if the run fails.

    Args:
        name: the dataset, for messages.
        home: the folder that holds it, which is made if it does not exist.
        restart: whether to discard what an unfinished run has read.

    Raises:
        OutputError: another run holds the lock, or the folder cannot be used.
    """

    def __init__(self, name: str, home: Path, *, restart: bool) -> None:
        self._home = home
        self._restart = restart
        self.path = home / META_WORK_NAME
        self.scans = self.path / "scans"
        self.staged = self.path / "staged"
        self._claimed = ClaimedFolder(self.path, f"{name}: another headrace prepare is working in this folder")
        self._is_complete = False

    def __enter__(self) -> WorkFolder:
        with output_errors(self._home, "use"):
            self._home.mkdir(parents=True, exist_ok=True)
            self._claimed.claim()
            try:
                commit = load(self.path / "commit", Commit)
                if commit is not None:
                    self._execute(commit)
                if self._restart or commit is not None:
                    self.clear()
                shutil.rmtree(self.staged, ignore_errors=True)
                self.scans.mkdir(exist_ok=True)
                (self.staged / META_FOLDER).mkdir(parents=True)
            except BaseException:
                self._claimed.leave(lambda: None)
                raise
        return self

    def clear(self) -> None:
        """Remove what earlier runs have read, and what is planned."""
        self._claimed.clear(keep=("staged", "commit"))
        self.scans.mkdir()

    def clear_scans(self) -> None:
        """Remove what earlier runs have left in `scans`."""
        shutil.rmtree(self.scans, ignore_errors=True)
        self.scans.mkdir()

    @property
    def planned(self) -> ReadPlan | None:
        """What is left to processes on any hosts; None if nothing is.

        Raises:
            OutputError: the plan cannot be read.
        """
        if not (self.path / PLAN_NAME).exists():
            return None
        return msgspec.json.decode(load_plan(self.path).plan, type=ReadPlan)

    def plan(self, make: Callable[[], ReadPlan]) -> None:
        """Leave reading to processes on any hosts. What was read by another plan before is not read again.

        Args:
            make: plans what is not in `scans`.

        Raises:
            OutputError: the plan cannot be written.
        """
        if make() == self.planned:
            return
        self.adopt()
        plan = make()
        for task in plan.tasks:
            if isinstance(task, ScanTask):  # that of a shard which has changed since
                scan_path(self.scans, task.tar.name).unlink(missing_ok=True)
        save_plan(self.path, KIND, plan, {})

    def adopt(self) -> None:
        """Move what other processes have read to `scans`.

        Raises:
            OutputError: it cannot be read or moved.
        """
        plan = self.planned
        if plan is not None:
            receipts = receipts_of(self.path, plan.phase)
            receipts.refresh()
            receipts.adopt(self.scans)

    def commit(self, *, remove: Sequence[str], indexed: Sequence[str], moves: Sequence[str]) -> None:
        """Move the new files into place; see `Commit`.

        Raises:
            OutputError: a file cannot be moved or removed; the next run continues with it.
        """
        commit = Commit(tuple(remove), tuple(indexed), tuple(moves))
        save(self.path / "commit", commit, sync=True)
        with output_errors(self._home, "replace files in"):
            self._execute(commit)
        self._is_complete = True

    def finish(self) -> None:
        """Mark the run as complete, so that its scans are removed at the end."""
        self._is_complete = True

    @abstractmethod
    def _execute(self, commit: Commit) -> None:
        """Carry out the last steps, as far as an earlier run has not done so, and remove the file ``commit``."""

    def _replaced(self, commit: Commit) -> list[str]:
        """Return what is removed first, without what is already the new file of its name."""
        return [name for name in commit.remove if name not in commit.moves or self._staged(name).exists()]

    def _staged(self, name: str) -> Path:
        return self.staged / META_FOLDER / name

    def _indexed(self, commit: Commit) -> Iterator[ShardScan]:
        """Yield the scans of the shards whose ``.tar.idx`` may be replaced."""
        for name in commit.indexed:
            scan = load(scan_path(self.scans, name), ShardScan)
            if scan is None:
                raise HeadraceError(f"{self.path}: the scan of {name} is missing: run again with --restart --overwrite")
            if scan.count:
                yield scan

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claimed.leave(self._end)
        if kind is not None:
            # Remove the folder if this run made it and left it empty.
            with contextlib.suppress(OSError):
                self._home.rmdir()

    def _end(self) -> None:
        if not self._is_complete and (self.path / "commit").exists():
            return  # the next run carries it out
        if not self._is_complete and ((self.path / PLAN_NAME).exists() or any(self.scans.iterdir())):
            shutil.rmtree(self.staged, ignore_errors=True)
        elif not (self.path / "commit").exists():
            remove_work(self.path)


class LocalWork(WorkFolder):
    """The hidden folder of a local dataset, which lies in its ``.nv-meta``.

    Args:
        root: the dataset.
        restart: see `WorkFolder`.
    """

    def __init__(self, root: Path, *, restart: bool) -> None:
        super().__init__(str(root), root / META_FOLDER, restart=restart)
        self._root = root

    def _execute(self, commit: Commit) -> None:
        meta = self._home
        for name in self._replaced(commit):
            (meta / name).unlink(missing_ok=True)
        if commit.remove:
            sync_folder(meta / "any")
        for scan in self._indexed(commit):
            if not is_tar_index_right(self._root, scan):
                write_tar_index(self._root, scan)
        for name in commit.moves:
            if self._staged(name).exists():  # otherwise an earlier run has moved it
                self._staged(name).rename(meta / name)
        sync_folder(meta / "any")
        (self.path / "commit").unlink()


MAIN: Final = "headrace.preparing.energon.work:main"


class ReadSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    root: str
    scans: str
    media: MediaFilter | None
    skips_faults: bool
    adds_index: bool
    """Whether the ``.tar.idx`` of a shard is written at once if there is none, and not only at the end of the run."""


class ScanTask(msgspec.Struct, frozen=True, tag=True):
    """A task of a worker: read this shard."""

    task_index: int
    tar: FoundTar

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return self.tar.name


ReadTask = ScanTask | MediaTask
KIND: Final = "energon"


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and the options of the run.

    Attributes:
        options: all options.
        media: the media whose metadata are gathered.
        tasks: the shards, or files of a folder of media.
    """

    options: EnergonOptions
    media: MediaFilter | None
    tasks: tuple[ReadTask, ...]

    @property
    def phase(self) -> Phase:
        """The phase of reading. Its name tells it from that of another plan."""
        return Phase(
            name=f"scan-{hash_bytes(msgspec.json.encode(self))[:8]}",
            num_tasks=len(self.tasks),
            total_bytes=sum(task.tar.size for task in self.tasks if isinstance(task, ScanTask)),
        )

    def setup(self, root: AnyPath, scans: Path, *, adds_index: bool) -> ReadSetup:
        """Return the first message to workers that read the dataset ``root`` and save what they find in ``scans``."""
        return ReadSetup(
            parent=os.getpid(),
            root=str(root.absolute()),
            scans=str(scans.absolute()),
            media=self.media,
            skips_faults=self.options.errors.on_error == "skip",
            adds_index=adds_index,
        )


def do(setup: ReadSetup, task: ReadTask) -> TaskResult:
    """Do one task; raises what `scan_tar` and `read_media` raise."""
    root, scans = Path(setup.root), Path(setup.scans)
    if isinstance(task, ScanTask):
        if is_url(setup.root):
            scan = resolve_name("headrace.preparing.energon.objects:scan_object")(setup, task.tar)
        else:
            scan = scan_tar(
                root, scans, task.tar, setup.media, skips_faults=setup.skips_faults, adds_index=setup.adds_index
            )
        name = scan_path(scans, task.tar.name).name
        return TaskResult(files=(name,), counts={"bytes": task.tar.size, "samples": scan.count})
    if setup.media is not None and is_url(setup.root):
        resolve_name("headrace.preparing.energon.objects:read_objects")(setup, task, setup.media)
    elif setup.media is not None:
        read_media(root, scans, task, setup.media)
    return TaskResult(files=(media_path(scans, task.task_index).name,), counts={"samples": len(task.names)})


def handle(setup: ReadSetup, task: ReadTask) -> Reply:
    """Do one task in a worker; any error becomes a `Failed`."""

    def done() -> Reply:
        return Done.of(task.task_index, do(setup, task))

    return attempted(task.task_index, done)


def read_all(
    tasks: Sequence[ReadTask],
    ready: Collection[int],
    setup: ReadSetup,
    num_workers: int,
    on_wait: Callable[[], None],
) -> Generator[int]:
    """Do the tasks, and yield the index of each in order once it is done.

    Args:
        tasks: the tasks, with indices from 0.
        ready: those that were done before.
        setup: the first message to the workers.
        num_workers: number of worker processes; with 1 this process does the tasks.
        on_wait: called now and then while workers run.

    Raises:
        InputError, OutputError: the error of the first failed task, by index.
        WorkerError: workers ended before their work was done.
    """
    num_workers = min(num_workers, len(tasks) - len(ready))
    if num_workers <= 1:
        for task in tasks:
            if task.task_index not in ready:
                do(setup, task)
            yield task.task_index
        return

    def waited(progress: Progress | None) -> None:
        on_wait()

    with WorkerProcesses(num_workers, setup, MAIN) as workers:
        results = run_tasks(
            workers,
            tasks,
            first_task=0,
            ready=[Done(task_index) for task_index in ready],
            run_ahead=8 * RUN_AHEAD,
            on_progress=waited,
            interval_s=REPORT_S,
        )
        for result in results:
            if isinstance(result, Failed):
                raise result.error()
            yield result.task_index


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, ReadSetup, ReadTask, lambda parent, setup: functools.partial(handle, setup))
