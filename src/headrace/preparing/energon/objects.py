"""A dataset at the URL of an object store: it is read there, and the new files are uploaded.

    SCRATCH/.headrace/...              the work folder on this host, see `work`; SCRATCH is that of all outputs at URLs
    URL/.nv-meta/.headrace/run.json    what decides the files that are being written; created once, and removed last
                          /...         a plan, and what its tasks have read, see `headrace.engine.shared_objects`
    URL/NAME.tar.idx, URL/.nv-meta/*   the files

Nothing is written before all new files are ready. Then the info file is removed, without which no reader opens the
dataset; the others are written, and a new info file last. If the run is killed in between, the same command carries out
the rest on this host, and on another one it reads the shards again. Other commands find another ``run.json``, and write
nothing. A folder of plain media gets a new ``index.sqlite`` in the same way, and a ``.jsonl`` its index by one PUT.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
import numpy as np

from headrace.engine.job import decoded_plan, receipts_of
from headrace.engine.processes import REPORT_S
from headrace.engine.serving import save
from headrace.engine.shared_objects import SharedObjects, save_plan
from headrace.engine.uploading import PLAN, RUN
from headrace.engine.work_folder import JOB_NAME, upload_scratch
from headrace.errors import OutputError
from headrace.io import FetchPolicy, ObjectReader, Storage, hash_bytes, local_file, path_at, reader_at
from headrace.io.objects.writer import PART_BYTES, ObjectWriter
from headrace.io.remote import RemotePath, Status
from headrace.preparing.energon.media import HEAD_BYTES, MediaFinder, MediaTask, load_media, media_path, media_tasks
from headrace.preparing.energon.options import EnergonOptions, MediaFilter
from headrace.preparing.energon.scanning import FoundTar, ShardScan, scan_tar
from headrace.preparing.energon.state import STATE_NAME, state_of_new_index
from headrace.preparing.energon.work import KIND, Commit, ReadPlan, ReadSetup, ScanTask, WorkFolder
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER, META_WORK_NAME
from headrace.stores.energon.jsonl import index_place, scan_lines
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.energon.sqlite_writer import update_media
from headrace.stores.kept_arrays import ENTRY
from headrace.stores.tar.index import beside

_INDEXES_AT_ONCE: Final = 64
_CLAIM_NAME: Final = "claim"

_WHOLE_BYTES: Final = 1 << 18
"""A file of at most so many bytes is fetched at once, also if its first bytes decide whether it is a medium."""


class ObjectShards:
    """A dataset at a URL.

    Args:
        url: the URL.
        storage: how the store is reached; None goes by the environment.

    Attributes:
        root: the URL as a path. It remembers what was looked up, until `ObjectWork` begins and has committed.
        at_once: how many shards are read at the same time, if the options name no number of workers.
    """

    at_once = 16

    def __init__(self, url: str, storage: Storage | None) -> None:
        self.root, self._reader = _reached(url, storage)
        self._storage = storage

    def work(self, options: EnergonOptions, found: Sequence[FoundTar]) -> ObjectWork:
        """Return the work folder of a run over these shards, not claimed yet."""
        return ObjectWork(self.root, self._storage, _described(options, "shards", found), restart=options.restart)

    def read(
        self,
        plan: ReadPlan,
        ready: Collection[int],
        scans: Path,
        num_threads: int,
        on_wait: Callable[[], None],
    ) -> Generator[int]:
        """Read shards in threads, since they wait for the store, and yield the index of each in order once it is read.

        Args:
            plan: the shards.
            ready: those that were read before.
            scans: where the scans are saved.
            num_threads: how many shards are read at the same time.
            on_wait: called now and then while shards are read.

        Raises:
            InputError, OutputError, StoreError: the error of the first shard that failed, by index.
        """
        tasks = [task for task in plan.tasks if isinstance(task, ScanTask)]
        skips = plan.options.errors.on_error == "skip"
        threads = ThreadPoolExecutor(num_threads, thread_name_prefix="headrace-shard")
        try:
            # Scans are on the disk, so that any number of them may be done before their turn.
            futures = {
                task.task_index: threads.submit(self.scan, scans, task.tar, plan.media, skips_faults=skips)
                for task in tasks
                if task.task_index not in ready
            }
            for task in tasks:
                future = futures.pop(task.task_index, None)
                while future is not None and not wait([future], timeout=REPORT_S).done:
                    on_wait()
                if future is not None:
                    future.result()
                yield task.task_index
        finally:
            threads.shutdown(cancel_futures=True)

    def scan(self, scans: Path, tar: FoundTar, media: MediaFilter | None, *, skips_faults: bool) -> ShardScan:
        """Read a shard, in any thread; see `scan_tar`. Every answer must come from the object that was found."""
        self._reader.objects.expect(str(self.root / tar.name), Status(tar.size, tar.etag, tar.mtime_ns))
        return scan_tar(self.root, scans, tar, media, skips_faults=skips_faults, adds_index=False, using=self._reader)


@functools.cache
def _dataset(url: str) -> ObjectShards:
    """The dataset that a worker reads."""
    return ObjectShards(url, None)


def scan_object(setup: ReadSetup, tar: FoundTar) -> ShardScan:
    """Read a shard at a URL in a worker; raises as `scan_tar` does."""
    return _dataset(setup.root).scan(Path(setup.scans), tar, setup.media, skips_faults=setup.skips_faults)


class ObjectMedia:
    """A folder of plain media at a URL.

    Args:
        url: the URL.
        storage: how the store is reached; None goes by the environment.

    Attributes:
        root: the URL as a path. It remembers what was looked up, until `gather` begins.
        at_once: how many files are read at the same time, if the options name no number of workers.
    """

    at_once = 32

    def __init__(self, url: str, storage: Storage | None) -> None:
        self.root, self._reader = _reached(url, storage)
        self._storage = storage

    def read_plan(self, options: EnergonOptions, names: Sequence[str]) -> ReadPlan:
        """Return the tasks to read the metadata of files, with what they are now."""
        found = [self.root.objects.known(str(self.root / name)) for name in names]
        return ReadPlan(options=options.lasting, media=options.media, tasks=tuple(media_tasks(names, found)))

    def plan(self, plan: ReadPlan, *, restart: bool) -> None:
        """Leave the reading of the files to processes on any hosts; raises as `gather` does."""
        with self._work(plan, restart=restart) as work:
            work.plan(lambda: plan)

    def gather(self, plan: ReadPlan, *, workers: int | None, restart: bool, on_progress: Callable[[int], None]) -> int:
        """Read the metadata of files, add them to the ``index.sqlite`` at the URL, and return how many there are.

        What other processes have read of the same plan is not read again.

        Args:
            plan: the files.
            workers: how many files are read at the same time; None for `at_once`.
            restart: whether to discard what an unfinished run has read.
            on_progress: called with how many files are done.

        Raises:
            OutputError: see `ObjectWork`.
            StoreError: a file cannot be read, or has changed.
            MissingExtraError: the package that reads media is not installed.
        """
        if plan.media is None:
            return 0
        tasks = [task for task in plan.tasks if isinstance(task, MediaTask)]
        with (
            self._work(plan, restart=restart) as work,
            ThreadPoolExecutor(workers or self.at_once, thread_name_prefix="headrace-media") as threads,
        ):
            work.clear_scans()
            if work.planned == plan:
                work.adopt()
            rows: list[MediaRow] = []
            done = 0
            for task in tasks:
                known = load_media(work.scans, task.task_index)
                if known is not None:
                    rows += known
                    done += len(task.names)
                    on_progress(done)
                    continue
                for row in self._rows(task, plan.media, threads):
                    rows += [] if row is None else [row]
                    done += 1
                    on_progress(done)
            staged = work.staged / META_FOLDER
            index = self.root / META_FOLDER / INDEX_NAME
            if index.is_file():
                shutil.copyfile(local_file(index), staged / INDEX_NAME)
            update_media(work.staged, rows, [(plan.media.strategy, ",".join(plan.media.patterns))])
            state = state_of_new_index(self.root, staged / INDEX_NAME)
            if state is not None:
                (staged / STATE_NAME).write_bytes(state)
            moves = [INDEX_NAME] if state is None else [INDEX_NAME, STATE_NAME]
            work.commit(remove=(), indexed=(), moves=moves)
        return len(rows)

    def read_task(self, scans: Path, task: MediaTask, wanted: MediaFilter) -> None:
        """Read the metadata of the files of a task, and save their rows, as `read_media` does."""
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="headrace-media") as threads:
            rows = [row for row in self._rows(task, wanted, threads) if row is not None]
        save(media_path(scans, task.task_index), rows)

    def _work(self, plan: ReadPlan, *, restart: bool) -> ObjectWork:
        tasks = [task for task in plan.tasks if isinstance(task, MediaTask)]
        found = [pair for task in tasks for pair in zip(task.names, task.objects, strict=True)]
        # A listing and a look-up may round the time of an object differently.
        facts = [(name, one.size, one.etag or one.modified_ns) for name, one in found]
        return ObjectWork(self.root, self._storage, _described(plan.options, "files", facts), restart=restart)

    def _rows(self, task: MediaTask, wanted: MediaFilter, threads: ThreadPoolExecutor) -> Iterator[MediaRow | None]:
        return threads.map(partial(self._row, MediaFinder(wanted)), zip(task.names, task.objects, strict=True))

    def _row(self, finder: MediaFinder, found: tuple[str, Status]) -> MediaRow | None:
        name, status = found
        url = str(self.root / name)
        self._reader.objects.expect(url, status)
        if status.size > _WHOLE_BYTES and finder.needs_head:
            head = self._reader.read(url, 0, HEAD_BYTES).tobytes()
            if finder.kind(name, head) is None:
                return None
        data = self._reader.read_files([url])[0].tobytes()
        kind = finder.kind(name, data)
        return None if kind is None else finder.row(name, kind, data)


@functools.cache
def _media(url: str) -> ObjectMedia:
    """The folder whose files a worker reads."""
    return ObjectMedia(url, None)


def read_objects(setup: ReadSetup, task: MediaTask, wanted: MediaFilter) -> None:
    """Read files at a URL in a worker; raises as `ObjectMedia.gather` does."""
    _media(setup.root).read_task(Path(setup.scans), task, wanted)


def write_remote_lines(url: str, storage: Storage | None) -> tuple[str, int]:
    """Write the index of a ``.jsonl`` beside it, and return its URL and the number of records.

    Raises:
        InputError: a line is not a JSON object.
        StoreError: the object cannot be read, or changes meanwhile.
        OutputError: the index cannot be written.
    """
    root, reader = _reached(url, storage)
    offsets = scan_lines(str(root), reader)
    index, data = str(index_place(root, reader)), np.ascontiguousarray(offsets, ENTRY).tobytes()
    # It is sent whole, so that nothing has to be found after a kill; a long one has more time.
    parts, usual = 1 + len(data) // PART_BYTES, FetchPolicy()
    policy = FetchPolicy(attempt_s=parts * usual.attempt_s, deadline_s=parts * usual.deadline_s)
    ObjectWriter(storage, policy).put({index: data})
    return index, len(offsets) - 1


def _reached(url: str, storage: Storage | None) -> tuple[RemotePath, ObjectReader]:
    """Return a URL as a path, and what reads it."""
    made = reader_at(url, "mmap", storage)
    root = path_at(url, made)
    if not isinstance(made, ObjectReader) or not isinstance(root, RemotePath):
        raise OutputError(f"{url}: is not the URL of an object")
    return root, made


def _described(options: EnergonOptions, what: str, found: Sequence[Any]) -> bytes:
    """Return what decides the files of a run: the options, and what is read."""
    facts = {"number": len(found), "xxh3_128": hash_bytes(msgspec.json.encode(found))}
    return msgspec.json.encode({"kind": KIND, "options": options.lasting, what: facts})


class ObjectWork(WorkFolder):
    """The work folder of a dataset at a URL.

    Args:
        root: the dataset.
        storage: how the store is reached.
        described: what decides the files of this run.
        restart: whether to discard what an unfinished run has read, here and at the URL.

    Raises:
        OutputError: a run with other options has begun to write there, or as for `WorkFolder`.
        StoreError: the store cannot be reached.
    """

    def __init__(self, root: RemotePath, storage: Storage | None, described: bytes, *, restart: bool) -> None:
        self._url = str(root)
        super().__init__(self._url, upload_scratch(self._url), restart=restart)
        self._root = root
        self._writer = ObjectWriter(storage)
        self._described = described
        self._meta = f"{self._url}/{META_FOLDER}"
        self._plan = f"{self._meta}/{PLAN}"
        self._claim = f"{self._meta}/{RUN}"
        self._before: dict[str, Status] = {}
        self._is_left = False
        """Whether a plan, or what its tasks have read, lies at the URL."""

    def __enter__(self) -> WorkFolder:
        super().__enter__()
        try:
            other = self._writer.read(self._claim)
            if other not in (None, self._described):
                if not self._restart:
                    raise self._refusal()
                self._writer.delete([self._claim])
            self._is_left = bool(self._job_files())
            self._before = self._files()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self._root.objects.forget()  # from here on, the files of the dataset are looked up anew
        return self

    @property
    def planned(self) -> ReadPlan | None:
        """See `WorkFolder.planned`."""
        data = self._writer.read(self._plan)
        return None if data is None else msgspec.json.decode(decoded_plan(data, self._plan).plan, type=ReadPlan)

    def plan(self, make: Callable[[], ReadPlan]) -> None:
        """See `WorkFolder.plan`. What was read by another plan before is read again."""
        plan = make()
        if self._restart or plan != self.planned:
            self._discard_job()
        save_plan(self._meta, self._writer, KIND, plan, {}, files={}, phases=[plan.phase])

    def adopt(self) -> None:
        """Fetch what other processes have read to `scans`.

        Raises:
            OutputError, StoreError: it cannot be read or written.
        """
        data = self._writer.read(self._plan)
        if data is not None:
            found = decoded_plan(data, self._plan)
            # If another host completes the job, this host can tell whose folder this was.
            (self.path / JOB_NAME).write_bytes(found.name.encode())
            shared = SharedObjects(self._meta, found.name, self._writer, self.path)
            receipts = receipts_of(shared, msgspec.json.decode(found.plan, type=ReadPlan).phase)
            receipts.refresh()
            receipts.fetch(self.scans)

    def commit(self, *, remove: Sequence[str], indexed: Sequence[str], moves: Sequence[str]) -> None:
        """See `WorkFolder.commit`.

        Raises:
            OutputError: another run writes to the dataset, or has done so since this one began; or an object cannot be
                written, and the next run continues with it.
        """
        (self.path / _CLAIM_NAME).write_bytes(self._described)
        if self._writer.create(self._claim, self._described) is not None:
            raise self._refusal()
        self._writer.check_creation(self._claim, self._described)
        if self._files() != self._before:
            raise OutputError(
                f"{self._url}: another run has written to this dataset meanwhile; run again, which reads what is new"
            )
        super().commit(remove=remove, indexed=indexed, moves=moves)

    def finish(self) -> None:
        """See `WorkFolder.finish`."""
        super().finish()
        claim = self._writer.read(self._claim)
        # A run may have been killed at its very end.
        if claim == self._described or (claim is None and self._is_left):
            self._discard_job(self._claim)

    def _discard_job(self, *more: str) -> None:
        """Remove the plan, and more, then what its tasks have read, unless another plan has come meanwhile."""
        self._writer.delete([self._plan, *more])
        files = self._job_files()
        if files and self._plan not in files:
            self._writer.delete(files)

    def _job_files(self) -> list[str]:
        """The URLs of a plan, and of what tasks have read."""
        work = f"{self._meta}/{META_WORK_NAME}"
        return [url for url in (f"{work}/{name}" for name in self._writer.sizes(work)) if url != self._claim]

    def _execute(self, commit: Commit) -> None:
        claimed = self.path / _CLAIM_NAME
        if not claimed.exists() or self._writer.read(self._claim) != claimed.read_bytes():
            # Another run was told to discard this one.
            (self.path / "commit").unlink()
            return
        self._writer.delete([f"{self._meta}/{name}" for name in self._replaced(commit)])
        self._write_indexes(commit)
        for name in commit.moves:
            if self._staged(name).exists():  # otherwise an earlier run has written it
                self._writer.put_files({f"{self._meta}/{name}": self._staged(name)})
                self._staged(name).unlink()
        (self.path / "commit").unlink()
        self._discard_job(self._claim)
        self._root.objects.forget()

    def _write_indexes(self, commit: Commit) -> None:
        with ThreadPoolExecutor(_INDEXES_AT_ONCE) as threads:
            scans = self._indexed(commit)
            while some := list(itertools.islice(scans, _INDEXES_AT_ONCE)):
                urls = [f"{self._url}/{beside(scan.tar.name)}" for scan in some]
                there = threads.map(self._content, urls)
                wrong = {
                    url: scan.offsets
                    for url, scan, content in zip(urls, some, there, strict=True)
                    if content != scan.offsets
                }
                self._writer.put(wrong)

    def _content(self, url: str) -> bytes | None:
        return ObjectWriter(self._writer.storage).read(url)

    def _files(self) -> dict[str, Status]:
        """What the files of ``.nv-meta`` are."""
        found = self._writer.statuses(self._meta)
        return {name: status for name, status in found.items() if not name.startswith(f"{META_WORK_NAME}/")}

    def _refusal(self) -> OutputError:
        return OutputError(
            f"{self._url}: an unfinished run with other options, or other shards, writes to this dataset. Give the same"
            " command to continue it, or --restart to discard it"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        with contextlib.suppress(OSError):
            self._home.rmdir()
