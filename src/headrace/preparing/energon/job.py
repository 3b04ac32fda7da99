"""An Energon dataset as a `Job`: tasks read its tars or media, and the end makes the new files of that.

The end makes the new files beside the old ones. Then it removes the info file, without which no reader opens the
dataset, puts the others into place, and the info last.

`prepare_energon` and `plan_energon`: a folder of tars or of media, or a JSONL file.

A run writes what Energon and `EnergonStore` read. A folder is a job: `prepare_energon` does all of it, and
`plan_energon` leaves the reading to processes on any hosts, see `job`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.config import nearest_path
from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.heartbeat import Nodes
from headrace.engine.job import Show, TaskProgress
from headrace.engine.planning import NewPlan
from headrace.engine.processes import usable_cores
from headrace.engine.serving import load
from headrace.engine.shared import Shared
from headrace.engine.tasks import PlannedJob
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError
from headrace.io import (
    AnyPath,
    AtomicFile,
    Storage,
    check_new,
    check_storage,
    output_errors,
    path_at,
    reader_at,
    reader_of,
    remove_file,
    replace_file,
    sync_folder,
)
from headrace.io.atomic import move_file
from headrace.io.finding import each
from headrace.preparing.energon.merging import Merged, ShardMerger, merge_media
from headrace.preparing.energon.options import EnergonOptions, check_options, check_plain
from headrace.preparing.energon.plan import KIND, ReadPlan, claimed, place_of, plan_in, plan_of
from headrace.preparing.energon.scanning import ShardScan, found_file
from headrace.preparing.energon.state import EnergonReport
from headrace.preparing.sources.source_file import check_same
from headrace.stores.energon.config_file import META_FOLDER, folder_kind
from headrace.stores.energon.jsonl import index_place, write_lines
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.tar.index import index_path

_NEW: Final = "new"
_PUTTING: Final = "putting"
"""Says that new files are being put into place, which at a URL nothing else keeps others from."""
_INDEXES_AT_ONCE: Final = 64


class EnergonJob(PlannedJob):
    """See the module. What is given is how the store of a URL is reached; None goes by the environment."""

    kind = KIND
    plan_type = ReadPlan
    plan: ReadPlan

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw, given: Storage | None = None) -> None:
        super().__init__(output, shared, plan, given)
        self._planned = self.plan
        """The plan as it is written."""

        self.plan = msgspec.structs.replace(self.plan, root=str(output.absolute()))

    @property
    def num_read(self) -> int:
        """How many files are read."""
        done = self.known_receipts().done
        return sum(len(task.files) for task in self.plan.tasks if task.task_index in done or self.plan.kept(task))

    def abandon(self) -> None:
        """Remove the plan if nothing is read, since the same run would fail again."""
        place = place_of(self.output)
        with suppress(HeadraceError), claimed(self.output):
            if not self.num_read and plan_in(place) == self._planned:
                place.clear()

    def finish(self, show: Show) -> EnergonReport:
        """See `Job`: make the new files, and put them into place.

        Raises:
            InputError: a tar has changed since it was found.
        """
        place = place_of(self.output)
        with claimed(self.output):
            now = plan_in(place)
            if now == self._planned:
                self._look_anew()
                self.check_inputs()
                merged = self._merged(show)
            else:
                merged = self._merged_by_others(now)
            if plan_in(place) == self._planned:
                place.clear()
            else:
                self.shared.sweep()
        return merged.report

    def check_inputs(self) -> None:
        """See `Job`. Media are as they were when they were read."""
        tars = () if self.plan.is_plain else (*self.plan.files, *self.plan.unchanged)
        now = each(lambda tar: found_file(self.output, tar.name), tars, [self.output])
        for tar, found in zip(tars, now, strict=True):
            advice = "Run again, or plan again, which reads what is new."
            check_same(str(self.output / tar.name), tar.status, found.status, advice)

    def _merged(self, show: Show) -> Merged:
        """Make the new files, and put them into place.

        Raises:
            OutputError, StoreError: a file cannot be moved or written.
        """
        folder, meta, total_bytes = self.work / _NEW, self.output / META_FOLDER, self.plan.total_bytes

        def tell(counts: Mapping[str, int], done: int = 0) -> None:
            progress = TaskProgress(phase="merge", done=done, num_tasks=1, counts=dict(counts), total_bytes=total_bytes)
            show.tasks(progress)

        made = folder / META_FOLDER
        with output_errors(made, "make the folder"):
            shutil.rmtree(folder, ignore_errors=True)
            made.mkdir(parents=True)
        try:
            if self.plan.is_plain:
                rows = itertools.chain.from_iterable(self.results(lambda path: load(path, list[MediaRow])))
                merged = merge_media(self.output, self.plan, list(rows), folder)
            else:
                merged = ShardMerger(self.output, self.plan, folder, tell, show.notice).merge(self._scans())
            tell({"samples": merged.report.samples, "bytes": total_bytes}, 1)
            if merged.moves and self.is_planned:  # else another process has done it meanwhile
                self.shared.create(_PUTTING, b"")
                for name in merged.remove:
                    remove_file(meta / name)
                if isinstance(meta, Path):
                    sync_folder(meta / "any")
                if not self.plan.is_plain:
                    self._put_indexes()
                for name in merged.moves:
                    move_file(made / name, meta / name)
                if isinstance(meta, Path):
                    sync_folder(meta / "any")  # before the plan is removed
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._look_anew()
        return merged

    def _put_indexes(self) -> None:
        scans = (scan for scan in self._scans() if scan.count)
        with ThreadPoolExecutor(_INDEXES_AT_ONCE, thread_name_prefix="headrace-index") as threads:
            while some := list(itertools.islice(scans, _INDEXES_AT_ONCE)):
                list(threads.map(self._put_index, some))

    def _put_index(self, scan: ShardScan) -> None:
        """Write the ``.tar.idx`` of a shard; in any thread, each of which has its own look-ups."""
        path = index_path(path_at(self.plan.root, reader_of(self.given)) / scan.tar.name)
        if isinstance(path, Path):
            # If this is killed, it leaves a temporary file that the next process overwrites.
            with AtomicFile(path, resumable=True) as file:
                file.write(scan.offsets)
        else:
            replace_file(path, scan.offsets)

    def _scans(self) -> Iterator[ShardScan]:
        """Yield what was read of each tar, in the order of the plan."""
        return itertools.chain.from_iterable(self.results(lambda path: load(path, list[ShardScan])))

    def _merged_by_others(self, now: ReadPlan | None) -> Merged:
        """Return what another process has merged, which has completed the dataset; nothing else may be planned now."""
        plan, root = self.plan, self.output
        self._look_anew()

        def quiet(told: Any) -> None:
            pass

        if now is not None:
            raise OutputError(f"{root}: another run was planned in place of this one: complete that, or run again")
        if plan.is_plain:
            return Merged(EnergonReport(kind="media", path=str(root), samples=len(plan.files)))
        options = msgspec.structs.replace(plan.options, overwrite=False)
        again = plan_of(root, options, quiet, is_plain=False)
        if again.is_new:
            raise OutputError(f"{root}: what was planned is not there any more, and the dataset is not complete")
        with tempfile.TemporaryDirectory(prefix="headrace-energon-") as folder:
            (Path(folder) / META_FOLDER).mkdir()
            return ShardMerger(root, again, Path(folder), quiet, quiet).merge(iter(()))

    def _look_anew(self) -> None:
        """Forget what was looked up at a URL."""
        if not isinstance(self.output, Path):
            self.output.objects.forget()


def prepare_energon(
    path: str | os.PathLike[str],
    *,
    options: EnergonOptions | None = None,
    storage: Storage | None = None,
    on_progress: Callable[[TaskProgress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda message: None,
) -> EnergonReport:
    """Prepare the dataset at a path, in place.

    A folder of tars gets a ``.tar.idx`` beside each tar and a folder ``.nv-meta``. Shards that an earlier run has read
    and that have not changed are not read again. The result does not depend on the number of workers. If a run ends
    early, the shards that it has read are kept for the next run. Existing files are replaced only when all new ones are
    ready.

    Args:
        path: a folder of tars; a ``.jsonl``, which gets a ``.jsonl.idx``; or with ``media_only`` a folder of files. All
            of these may be at a URL.
        options: all options; None uses their defaults. At a URL a process reads 16 shards or 32 files at the
            same time, so that by default ``workers`` is 1 there.
        storage: how the store of a URL is reached; None goes by the environment.
        on_progress: called with how far the run is. The phase is ``scan-...``, which reads shards or files, then
            ``merge``, which makes the new files; both count samples, and of tars bytes.
        on_notice: called with messages about what was decided, left out or kept.

    Returns:
        What the run did.

    Raises:
        ConfigError: options contradict each other, or do not say how the shards are assigned; or the path is a
            metadataset, whose joins `Metadataset.prepare` makes.
        InputError: a tar is malformed or compressed, a key comes twice, or there is nothing to prepare.
        StoreError: files of an earlier run are malformed, or the store of the URL cannot be reached.
        OutputError: a file cannot be written, or another run is working in this folder.
        WorkerError: worker processes ended before their work was done.
        MissingExtraError: metadata of media are asked for, and the package that reads them is not installed.
    """
    root, options, kind = _asked(path, options, storage)
    if kind:
        if kind == ".yaml":
            raise ConfigError(
                f"{path}: the indices of the joins of a metadataset are made by headrace prepare energon {path}, or in"
                " Python by headrace.datasets.metadataset.load_dataset(path).prepare()"
            )
        check_plain(path, options)
        return _lines(root, storage)
    job = _job_of(root, options, storage, on_notice)
    workers = options.workers or (usable_cores() if isinstance(root, Path) else 1)
    num_open = len(job.known_receipts().open_tasks)
    executor = LocalExecutor(workers=0 if min(workers, num_open) <= 1 else workers)
    try:
        report: EnergonReport = drive(job, executor, Show(tasks=on_progress, notice=on_notice))
    except HeadraceError:
        job.abandon()
        raise
    return report


def plan_energon(
    path: str | os.PathLike[str],
    *,
    options: EnergonOptions | None = None,
    on_notice: Callable[[str], None] = lambda message: None,
) -> None:
    """Plan a run of `prepare_energon` in the dataset, for processes on any hosts to read its shards, see `open_job`.

    The result is the same. What an unfinished run or another plan has read is not read again.

    Args:
        path: a folder of tars, or with ``media_only`` a folder of files, that all hosts can write to; or such a folder
            at a URL, where they share nothing else.
        options: see `prepare_energon`.
        on_notice: see `prepare_energon`.

    Raises:
        ConfigError: the options are not valid, or the path is a ``.jsonl`` or a metadataset.
        InputError, StoreError, OutputError: as `prepare_energon`.
    """
    root, options, kind = _asked(path, options, None)
    if kind:
        raise ConfigError(f"{path}: a {kind} is not planned for other processes; prepare it here: it is one step")
    _job_of(root, options, None, on_notice)


def _job_of(
    root: AnyPath, options: EnergonOptions, storage: Storage | None, on_notice: Callable[[str], None]
) -> EnergonJob:
    """Write the plan of a run, or find it there.

    Raises:
        ConfigError: options do not say how the shards are assigned, or do not choose media.
        InputError: there is nothing to prepare.
        OutputError: another run is working there; or one with other options has not put all its files into place at
            the URL.
    """
    place = place_of(root)
    with claimed(root):
        before = plan_in(place)
        busy = Nodes(place.shared()).here() if isinstance(root, Path) and before is not None else []
        if options.restart and not busy:
            place.clear()
            before = None
        # If the end was killed, the info file may be gone by which a dataset of tars is known.
        is_tars = folder_kind(root) == "webdataset"
        if before is not None and before.options.media_only:
            is_tars = not before.is_plain
        is_plain = options.media_only and not is_tars
        plan = plan_of(root, options, on_notice, is_plain=is_plain)
        is_other = before is not None and plan.described != before.described
        if busy and (options.restart or is_other):
            raise OutputError(
                f"{root}: process {busy[0].process} of this host is reading this dataset, with other options or other"
                " shards: wait until it has ended, or end it first. If it is no headrace prepare, but has the number of"
                f" one that was killed, remove {place.shared().here}"
            )
        if is_other and not isinstance(root, Path) and place.shared().read(_PUTTING) is not None:
            raise OutputError(
                f"{root}: an unfinished run with other options, or other shards, writes to this dataset. Give the same"
                " command to continue it, or --restart to discard it"
            )
        place.save(NewPlan(KIND, plan, [plan.phase]))
        job = EnergonJob(root, place.shared(), msgspec.Raw(msgspec.json.encode(plan)), storage)
    if job.num_read and not is_plain:
        on_notice(f"continuing the unfinished run in this folder: {job.num_read:,} shards are read")
    return job


def _asked(
    path: str | os.PathLike[str], options: EnergonOptions | None, storage: Storage | None
) -> tuple[AnyPath, EnergonOptions, str]:
    """Check what a caller asked for; return the dataset, the options, and the suffix of a file, see `_single`.

    Raises:
        ConfigError: the path is the URL of a web server, or options contradict each other.
        InputError: there is nothing at the path.
    """
    check_storage(storage, path)
    options = EnergonOptions() if options is None else options
    check_options(options)
    check_new(path, overwrite=False)
    root = path_at(path, reader_at(path, "mmap", storage))
    return root, options, _single(root)


def _single(root: AnyPath) -> str:
    """Return the suffix of a file that is prepared in one step; empty for a folder.

    Raises:
        InputError: there is neither.
    """
    suffix = root.suffix
    if suffix in (".jsonl", ".yaml") and ((suffix == ".yaml" and not isinstance(root, Path)) or root.is_file()):
        return suffix
    if root.is_dir():
        return ""
    if isinstance(root, Path):
        raise InputError(f"{root}: expected a folder of tars, a .jsonl, or a metadataset .yaml{nearest_path(root)}")
    raise InputError(f"{root}: there are no objects below this URL; expected a folder of tars, a .jsonl, or a .yaml")


def _lines(root: AnyPath, storage: Storage | None) -> EnergonReport:
    count = write_lines(root, reader_at(root, "pread", storage))
    return EnergonReport(kind="jsonl", path=str(root), samples=count, written=(str(index_place(root)),))
