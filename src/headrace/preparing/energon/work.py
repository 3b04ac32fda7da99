"""The hidden folder of a run, ``.nv-meta/.headrace``, and the worker processes that read shards and files.

    lock          held by the run
    scans/        one file for each shard that was read; the next run continues from there
    staged/       the new files
    commit        what is still to be moved and removed; once it exists the run is complete, and the next run carries it
                  out if this one is killed

With one worker the shards are read in this process.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final

import msgspec

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
from headrace.errors import HeadraceError, OutputError
from headrace.io import claim_folder, output_errors, sync_folder
from headrace.preparing.energon.media import MediaTask, read_media
from headrace.preparing.energon.options import MediaFilter
from headrace.preparing.energon.scanning import (
    FoundTar,
    ShardScan,
    is_tar_index_right,
    scan_path,
    scan_tar,
    write_tar_index,
)
from headrace.stores.energon.config_file import META_FOLDER

WORK_NAME: Final = ".headrace"


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


class WorkFolder:
    """The hidden folder. As a context manager it locks the folder for one run; scans stay if the run fails.

    Raises:
        OutputError: another run holds the lock, or the folder cannot be used.
    """

    def __init__(self, root: Path, *, restart: bool) -> None:
        self._root = root
        self._restart = restart
        self._meta = root / META_FOLDER
        self.path = self._meta / WORK_NAME
        self.scans = self.path / "scans"
        self.staged = self.path / "staged"
        self._lock: IO[bytes] | None = None
        self._is_complete = False

    def __enter__(self) -> WorkFolder:
        with output_errors(self._meta, "use"):
            self._meta.mkdir(exist_ok=True)
            try:
                self._lock = claim_folder(self.path)
            except BlockingIOError:
                raise OutputError(f"{self._root}: another headrace prepare is working in this folder") from None
            try:
                commit = load(self.path / "commit", Commit)
                if commit is not None:
                    self._execute(commit)
                if self._restart or commit is not None:
                    shutil.rmtree(self.scans, ignore_errors=True)
                shutil.rmtree(self.staged, ignore_errors=True)
                self.scans.mkdir(exist_ok=True)
                (self.staged / META_FOLDER).mkdir(parents=True)
            except BaseException:
                self._lock.close()
                raise
        return self

    def commit(self, *, remove: Sequence[str], indexed: Sequence[str], moves: Sequence[str]) -> None:
        """Move the new files into place; see `Commit`.

        Raises:
            OutputError: a file cannot be moved or removed; the next run continues with it.
        """
        commit = Commit(tuple(remove), tuple(indexed), tuple(moves))
        save(self.path / "commit", commit, sync=True)
        with output_errors(self._meta, "replace files in"):
            self._execute(commit)
        self._is_complete = True

    def finish(self) -> None:
        """Mark the run as complete, so that its scans are removed at the end."""
        self._is_complete = True

    def _execute(self, commit: Commit) -> None:
        for name in commit.remove:
            if (
                name not in commit.moves or (self.staged / META_FOLDER / name).exists()
            ):  # otherwise it is already the new one
                (self._meta / name).unlink(missing_ok=True)
        if commit.remove:
            sync_folder(self._meta / "any")
        for name in commit.indexed:
            scan = load(scan_path(self.scans, name), ShardScan)
            if scan is None:
                raise HeadraceError(f"{self.path}: the scan of {name} is missing: run again with --restart --overwrite")
            if scan.count and not is_tar_index_right(self._root, scan):
                write_tar_index(self._root, scan)
        for name in commit.moves:
            staged = self.staged / META_FOLDER / name
            if staged.exists():  # otherwise an earlier run has moved it
                staged.rename(self._meta / name)
        sync_folder(self._meta / "any")
        (self.path / "commit").unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_complete or not any(self.scans.iterdir()):
            if not (self.path / "commit").exists():
                shutil.rmtree(self.path, ignore_errors=True)
        else:
            shutil.rmtree(self.staged, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
        if kind is not None:
            # Remove the folder if this run made it and left it empty.
            with contextlib.suppress(OSError):
                self._meta.rmdir()


MAIN: Final = "headrace.preparing.energon.work:main"


class ReadSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    root: str
    scans: str
    media: MediaFilter | None
    skips_faults: bool


class ScanTask(msgspec.Struct, frozen=True, tag=True):
    """A task of a worker: read this shard."""

    task_index: int
    tar: FoundTar


ReadTask = ScanTask | MediaTask


def do(setup: ReadSetup, task: ReadTask) -> None:
    """Do one task; raises what `scan_tar` and `read_media` raise."""
    root, scans = Path(setup.root), Path(setup.scans)
    if isinstance(task, ScanTask):
        scan_tar(root, scans, task.tar, setup.media, skips_faults=setup.skips_faults)
    elif setup.media is not None:
        read_media(root, scans, task, setup.media)


def handle(setup: ReadSetup, task: ReadTask) -> Reply:
    """Do one task in a worker; any error becomes a `Failed`."""

    def done() -> Reply:
        do(setup, task)
        return Done(task.task_index, 0, True)

    return attempted(task.task_index, done)


def read_all(
    tasks: Sequence[ReadTask], setup: ReadSetup, num_workers: int, on_wait: Callable[[], None]
) -> Generator[int]:
    """Do the tasks, and yield the index of each in order once it is done.

    Args:
        tasks: the tasks, with indices from 0.
        setup: the first message to the workers.
        num_workers: number of worker processes; with 1 this process does the tasks.
        on_wait: called now and then while workers run.

    Raises:
        InputError, OutputError: the error of the first failed task, by index.
        WorkerError: workers ended before their work was done.
    """
    if min(num_workers, len(tasks)) <= 1:
        for task in tasks:
            do(setup, task)
            yield task.task_index
        return

    def waited(progress: Progress | None) -> None:
        on_wait()

    with WorkerProcesses(min(num_workers, len(tasks)), setup, MAIN) as workers:
        results = run_tasks(
            workers, tasks, first_task=0, ready=[], run_ahead=8 * RUN_AHEAD, on_progress=waited, interval_s=REPORT_S
        )
        for result in results:
            if isinstance(result, Failed):
                raise result.error()
            yield result.task_index


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, ReadSetup, ReadTask, lambda parent, setup: functools.partial(handle, setup))
