"""A copy as a `Job` of one phase, ``copy``: a task for each shard that is written, and others that hash files.

A shard of the output is written whole by one task, and only moved at the end; one shard is one task, however large. A
file of a source is hashed by the task that copies all its documents; if several tasks copy them, by a task of its own.
The end is that of the local run: it finds the shards of all tasks on disk, and reads back and compares them all.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import xxhash

from headrace.copying.copier import Copier, CopyProgress, CopyReport, MadeShard
from headrace.copying.destination import WORK
from headrace.copying.orders import CopiedElsewhere, CopyOrder, carry_out, carry_out_at, planned
from headrace.copying.plan import ranges_of
from headrace.copying.sources import StoreSource, open_sources
from headrace.engine.job import OnePhaseJob, Phase, Show, TaskResult, load_plan, receipts_of, save_plan
from headrace.engine.receipts import Receipt, Receipts
from headrace.engine.serving import Done, Failed, Parent, Progress, Reply, attempted, serve
from headrace.engine.shared import Shared, remove_files
from headrace.engine.work_folder import PLAN_NAME
from headrace.errors import InputError, OutputError, StoreError
from headrace.io import AnyPath, etag_of, hash_bytes, is_url, output_errors, path_at, sync_folder
from headrace.stores import InputFile

if TYPE_CHECKING:
    from headrace.copying.uploaded import UploadedDestination

KIND: Final = "copy"
MAIN: Final = "headrace.copying.jobs:main"


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a source, as it was when the copy was planned."""

    source: int
    path: str
    size: int
    mtime_ns: int
    task: int
    """Index of the task that hashes it."""

    etag: str = ""
    """What an object store says stands for its content."""


class ShardTask(msgspec.Struct, frozen=True, tag=True):
    """Write this shard of the store ``folder``, and hash files."""

    task_index: int
    folder: int
    shard: int

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return f"shard {self.shard} of store {self.folder}"


class FileTask(msgspec.Struct, frozen=True, tag=True):
    """Hash files."""

    task_index: int

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return "hashes of files"


class CopyJobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the job."""

    order: CopyOrder
    files: tuple[CopiedFile, ...]
    total_bytes: int

    @property
    def shard_tasks(self) -> list[ShardTask]:
        """The tasks of the shards, in their order; they come first."""
        found: list[ShardTask] = []
        for folder, plan in enumerate(self.order.plan.folders):
            found += [ShardTask(len(found) + shard, folder, shard) for shard in range(len(plan.shards))]
        return found

    @property
    def file_tasks(self) -> list[FileTask]:
        """The tasks that only hash files."""
        num_shards = len(self.shard_tasks)
        return [FileTask(index) for index in sorted({file.task for file in self.files if file.task >= num_shards})]

    @property
    def phase(self) -> Phase:
        """The only phase. Its name tells it from that of another plan."""
        name = f"copy-{hash_bytes(msgspec.json.encode(self))[:8]}"
        num_tasks = len(self.shard_tasks) + len(self.file_tasks)
        return Phase(name=name, num_tasks=num_tasks, total_bytes=self.total_bytes)

    def check_files(self) -> None:
        """Refuse sources that have changed.

        Raises:
            StoreError: a file is missing here, or is another one than when the copy was planned.
        """
        output = self.order.request.output
        for file in self.files:
            path = self.path_of(file)
            try:
                found, etag = path.stat(), etag_of(path)
            except OSError as error:
                raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
            is_same = etag == file.etag if file.etag and etag else found.st_mtime_ns == file.mtime_ns
            if found.st_size != file.size or not is_same:
                what = f"what is below {output}" if is_url(output) else WORK(Path(output))
                raise StoreError(f"{path}: the file changed since the copy was planned; remove {what}, and plan again")

    def path_of(self, file: CopiedFile) -> AnyPath:
        """Return where a file of a source is."""
        return path_at(file.path) if is_url(file.path) else Path(self.order.folder, file.path)


def _plan_of(order: CopyOrder, sources: Sequence[StoreSource]) -> CopyJobPlan:
    shards = [shard for folder in order.plan.folders for shard in folder.shards]
    pieces: dict[int, list[tuple[int, int, int]]] = {}
    for number, shard in enumerate(shards):
        for piece in ranges_of([shard]):
            pieces.setdefault(piece.source, []).append((piece.first, piece.end, number))
    num_tasks, total_bytes = len(shards), sum(store.bytes for store in planned(order, sources).stores)
    files = []
    for number, source in enumerate(sources):
        owners = _owners(source, sorted(pieces.get(number, ())))
        for file in source.files:
            found = file.stat()
            task = owners.get(file)
            if task is None:
                task, num_tasks, total_bytes = num_tasks, num_tasks + 1, total_bytes + found.st_size
            path = source.path_of(file)
            files.append(
                CopiedFile(
                    source=number,
                    path=path,
                    size=found.st_size,
                    mtime_ns=found.st_mtime_ns,
                    task=task,
                    etag=etag_of(file),
                )
            )
    return CopyJobPlan(order=order, files=tuple(files), total_bytes=total_bytes)


def _owners(source: StoreSource, pieces: Sequence[tuple[int, int, int]]) -> dict[AnyPath, int]:
    """Return for files the task that copies all their documents, if there is one.

    Args:
        source: the source.
        pieces: (first document, end, task) of the ranges that are copied, ascending.
    """
    owners: dict[AnyPath, int] = {}
    for first, end, paths in source.files_by_shard():
        at = bisect.bisect_right(pieces, first, key=lambda piece: piece[0]) - 1
        if first < end and at >= 0 and end <= pieces[at][1]:
            owners |= dict.fromkeys(paths, pieces[at][2])
    return owners


def _receipts(plan: CopyJobPlan) -> Receipts | None:
    """Return the receipts of a copy if it was planned; None if no copy was.

    Raises:
        OutputError: another copy is planned for the same output.
    """
    output = plan.order.request.output
    work = WORK(Path(output))
    if not (work / PLAN_NAME).exists():
        return None
    found = load_plan(work)
    if found.kind != KIND or msgspec.json.decode(found.plan) != msgspec.json.decode(msgspec.json.encode(plan)):
        raise OutputError(
            f"{output}: a copy of other sources, or with other options, is planned for this output: complete it with"
            f" headrace job finish {output}, or remove {work}"
        )
    receipts = receipts_of(work, plan.phase)
    receipts.refresh()
    return receipts


def plan_copy(order: CopyOrder, sources: Sequence[StoreSource]) -> CopyReport:
    """Plan a copy beside its output, or find it planned there; tasks that failed before are to be tried again.

    Raises:
        OutputError: the destination is not free, another copy is planned there, or the plan cannot be written.
    """
    destination = order.destination(sources)
    plan = _plan_of(order, sources)
    with destination:
        if (receipts := _receipts(plan)) is not None:
            receipts.forget_failed()
        save_plan(destination.work, KIND, plan, {})  # again, since the software may be another one now
        destination.keep()
    return planned(order, sources)


def plan_copy_at(order: CopyOrder, sources: Sequence[StoreSource], destination: UploadedDestination) -> CopyReport:
    """Do as `plan_copy` does, with a destination at a URL.

    Raises:
        OutputError: the place is not free, another copy is planned there, or the plan cannot be written.
    """
    destination.check()
    plan = _plan_of(order, sources)
    with destination:
        destination.save_plan(KIND, plan, plan.phase)
    return planned(order, sources)


def found_elsewhere(order: CopyOrder, sources: Sequence[StoreSource]) -> CopiedElsewhere | None:
    """Return what other processes have done of a copy; None if none is planned.

    Raises:
        OutputError: another copy is planned for the same output.
    """
    plan = _plan_of(order, sources)
    receipts = _receipts(plan)
    return None if receipts is None else _Found(plan, receipts, sources)


class ShardResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a receipt says of a task."""

    made: MadeShard | None = None
    """The shard; None if the task only hashed files."""

    names: tuple[str, ...] = ()
    """The files of the shard, or its folder."""

    inputs: tuple[InputFile, ...] = ()
    """The files that were hashed."""


class _Found:
    """What the tasks have done; see `CopiedElsewhere`."""

    def __init__(self, plan: CopyJobPlan, receipts: Receipts, sources: Sequence[StoreSource]) -> None:
        self._plan = plan
        self._folder = receipts.folder
        self._copier = plan.order.copier(sources, lambda progress: None)
        self._results = {
            index: (self._folder / receipt.attempt / _name(index), msgspec.convert(receipt.value, ShardResult))
            for index, receipt in receipts.done.items()
            if not receipt.error
        }

    @property
    def inputs(self) -> Mapping[str, InputFile]:
        return {file.path: file for _, result in self._results.values() for file in result.inputs}

    def find(self, number: int, place: Path) -> MadeShard:
        """See `CopiedElsewhere`. What failed, was not done or is lost is written now."""
        written, result = self._results.get(number, (Path(), ShardResult()))
        if result.made is None or not all(
            (place / name).exists() or (written / name).exists() for name in result.names
        ):
            written = self._folder / "again"
            result = _write(self._copier, self._plan, self._plan.shard_tasks[number], written)
        with output_errors(place, "collect shards in"):
            for name in result.names:
                if not (place / name).exists():
                    (written / name).rename(place / name)
        return result.made or MadeShard()


def _name(task_index: int) -> str:
    """Return the name of the folder in which a task writes its shard."""
    return f"shard-{task_index:06d}"


def _write(copier: Copier, plan: CopyJobPlan, task: ShardTask, place: Path) -> ShardResult:
    with output_errors(place, "make the folder"):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    folder = plan.order.plan.folders[task.folder]
    if is_url(plan.order.request.output):
        made = copier.write_alone(place, folder, task.shard)  # nobody reads it back before it is uploaded
    else:
        made = copier.write_shard(place, folder, task.shard, {key: xxhash.xxh3_128() for key in plan.order.plan.dtypes})
    sync_folder(place / "any")
    return ShardResult(made=made, names=tuple(sorted(os.listdir(place))))  # noqa: PTH208 - names alone


class CopyJob(OnePhaseJob):
    """See the module."""

    kind = KIND
    main = MAIN

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw) -> None:
        self._plan = msgspec.json.decode(plan, type=CopyJobPlan)
        super().__init__(output, shared, self._plan.phase, [*self._plan.shard_tasks, *self._plan.file_tasks])

    def setup(self, phase: Phase, results: Path) -> CopySetup:
        """See `Job`."""
        return CopySetup(parent=os.getpid(), plan=self._plan, results=str(results))

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        """See `Job`. A value that does not fit into its dtype is the same on every host."""
        error = failed.error()
        if isinstance(error, InputError):
            return TaskResult(error=str(error))
        raise error

    def finish(self, show: Show) -> CopyReport:
        """See `Job`: put the shards together, read them back, and move the output into place, as a local run."""
        self._plan.check_files()
        if not self.shared.is_folder:
            return self._finish_at(show)
        order, is_planned = self._plan.order, self.is_planned
        options = order.request.options
        if not is_planned:  # then this finds the output that the other process has made
            options = msgspec.structs.replace(options, overwrite=False)
        request = msgspec.structs.replace(order.request, output=str(self.output), options=options)
        order = msgspec.structs.replace(order, request=request)
        with open_sources(request.paths, options, order.folder) as sources:
            found = _Found(self._plan, self.known_receipts(), sources) if is_planned else None
            return carry_out(order, sources, show.progress, found)

    def publish(self, folder: str, receipt: Receipt) -> None:
        """See `Job`: a shard of an output at a URL goes where it will stay."""
        if self.shared.is_folder or not receipt.files:
            super().publish(folder, receipt)
        elif self.is_planned:
            task, result = self._plan.shard_tasks[receipt.task_index], msgspec.convert(receipt.value, ShardResult)
            store = self._plan.order.plan.folders[task.folder].name
            place = self.shared.here / folder
            send = resolve_name("headrace.copying.uploaded:send_alone")  # loaded when the first URL comes
            send(self.shared.address, task.task_index, store, place / receipt.files[0], result.made)
            remove_files(place, receipt.files)

    def _finish_at(self, show: Show) -> CopyReport:
        """Write the shards that nobody has written, and the manifests."""
        order = self._plan.order
        results = [
            msgspec.convert(one.value, ShardResult) for one in self.known_receipts().done.values() if not one.error
        ]
        known = {file.path: file for result in results for file in result.inputs}
        with open_sources(order.request.paths, order.request.options, order.folder) as sources:
            return carry_out_at(order, sources, show.progress, order.uploaded(sources, None), known)


class CopySetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    plan: CopyJobPlan
    results: str


class _Copying:
    """Does tasks in a worker. The sources are opened with the first, and stay open."""

    def __init__(self, parent: Parent, setup: CopySetup) -> None:
        self._parent = parent
        self._plan = setup.plan
        self._results = Path(setup.results)
        self._opened = contextlib.ExitStack()
        self._sources: list[StoreSource] = []

    def handle(self, task: ShardTask | FileTask) -> Reply:
        """Do a task; any error becomes a `Failed`."""
        return attempted(task.task_index, lambda: Done.of(task.task_index, self._do(task)))

    def _do(self, task: ShardTask | FileTask) -> TaskResult:
        order = self._plan.order
        if not self._sources:
            self._plan.check_files()
            opened = open_sources(order.request.paths, order.request.options, order.folder)
            self._sources = self._opened.enter_context(opened)
        files: tuple[str, ...] = ()
        counts = {"bytes": 0}
        result = ShardResult()
        if isinstance(task, ShardTask):
            copier = order.copier(self._sources, partial(self._report, task.task_index))
            result = _write(copier, self._plan, task, self._results / _name(task.task_index))
            files = (_name(task.task_index),)
            counts = _counts(self._plan, task, result)
        mine = [file for file in self._plan.files if file.task == task.task_index]
        inputs = tuple(self._sources[file.source].input(self._plan.path_of(file)) for file in mine)
        if isinstance(task, FileTask):
            counts["bytes"] = sum(file.size for file in mine)
        return TaskResult(
            files=files, counts=counts, value=msgspec.to_builtins(msgspec.structs.replace(result, inputs=inputs))
        )

    def _report(self, task_index: int, progress: CopyProgress) -> None:
        self._parent.report(Progress(task_index, 0, progress.documents, progress.tokens))


def _counts(plan: CopyJobPlan, task: ShardTask, result: ShardResult) -> dict[str, int]:
    entries = [] if result.made is None else result.made.entries
    keys = [(key, info.tokens) for entry in entries for key, info in entry.keys.items()]
    dtypes = plan.order.plan.dtypes
    return {
        "bytes": sum(tokens * np.dtype(dtypes[key]).itemsize for key, tokens in keys),
        "documents": sum(piece.num_documents for piece in plan.order.plan.folders[task.folder].shards[task.shard]),
        "tokens": sum(tokens for _, tokens in keys),
    }


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, CopySetup, ShardTask | FileTask, lambda parent, setup: _Copying(parent, setup).handle)
