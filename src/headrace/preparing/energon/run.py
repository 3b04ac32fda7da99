"""`prepare_energon`, and the run that prepares the tars of a folder.

A run writes what Energon and `EnergonStore` read, for a folder of tars, a JSONL file, a folder of media or a
metadataset. `plan_energon` leaves the reading to processes on any hosts, see `job`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

from headrace.config import nearest_path
from headrace.engine.processes import usable_cores
from headrace.errors import ConfigError, InputError, StoreAwayError, StoreError
from headrace.io import AnyPath, Storage, check_readable, check_storage, is_url, local_path
from headrace.io.finding import each
from headrace.preparing.energon.committer import Indexed, ShardCommitter
from headrace.preparing.energon.finishing import Finisher
from headrace.preparing.energon.media import MediaTask, find_files, load_media, media_tasks
from headrace.preparing.energon.metadataset import prepare_joins
from headrace.preparing.energon.options import EnergonOptions, MediaFilter, check_options
from headrace.preparing.energon.report import EnergonProgress, EnergonReport
from headrace.preparing.energon.scanning import FoundTar, ShardScan, find_shards, load_scan
from headrace.preparing.energon.state import DatasetState, ShardState, is_indexed, read_state, tell_of_new_index
from headrace.preparing.energon.work import LocalWork, ReadPlan, ScanTask, WorkFolder, read_all
from headrace.stores.energon.config_file import INDEX_NAME, INFO_NAME, META_FOLDER, UUID_NAME, folder_kind, read_info
from headrace.stores.energon.jsonl import index_place, write_lines
from headrace.stores.energon.splits import Splits, find_splits
from headrace.stores.energon.sqlite_writer import SqliteWriter, update_media

if TYPE_CHECKING:
    from headrace.preparing.energon.objects import ObjectMedia, ObjectShards

WORKER_BYTES: Final = 128 << 20
"""Bytes of tars that are worth a worker process, since starting one takes as long as reading the headers of some."""

MEDIA_WORKER_BYTES: Final = 8 << 20
"""The same, if media are read."""

_OBJECTS: Final = "headrace.preparing.energon.objects"


class ShardsRun:
    """Prepares the tars of a folder.

    Args:
        root: the folder, or the dataset at a URL.
        options: options that `check_options` has accepted.
        on_progress: called with how far the run is.
        on_notice: called with messages about what was decided, left out or kept.
    """

    def __init__(
        self,
        root: Path | ObjectShards,
        options: EnergonOptions,
        *,
        on_progress: Callable[[EnergonProgress], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._remote = None if isinstance(root, Path) else root
        self._root: AnyPath = root if isinstance(root, Path) else root.root
        self._meta = self._root / META_FOLDER
        self._options = options
        self._skips = options.errors.on_error == "skip"
        self._on_progress = on_progress
        self._on_notice = on_notice

    def run(self) -> EnergonReport:
        """Do the whole run; see `prepare_energon`."""
        found = self._found()
        with self._work(found) as work:
            splits = self._splits()
            before, media = self._before()
            known = self._known(splits)
            to_read = self._to_read(found, before, media)
            if to_read is None:
                states = {tar.name: before.shards[tar.name] for tar in found}
                indexed = Indexed(to_read=set(), before=before, media=media, states=states, duplicates=None)
            else:
                indexed = self._index(work, found, to_read, before, media)
            finisher = Finisher(self._root, self._options, self._on_notice)
            return finisher.finish(work, indexed, splits, known)

    def plan(self) -> None:
        """Leave the reading of the shards to processes on any hosts; see `plan_energon`."""
        found = self._found()
        with self._work(found) as work:
            self._splits()
            before, media = self._before()
            to_read = self._to_read(found, before, media) or set()
            wanted = [tar for tar in found if tar.name in to_read]

            def plan() -> ReadPlan:
                # What this host has read of a dataset at a URL lies on its disk, where no other host finds it.
                open_tars = [tar for tar in wanted if self._remote or not self._is_read(work, tar, media)]
                return self._plan(open_tars, media)

            work.plan(plan)

    def _work(self, found: Sequence[FoundTar]) -> WorkFolder:
        if self._remote is not None:
            return self._remote.work(self._options, found)
        return LocalWork(local_path(self._root), restart=self._options.restart)

    def _found(self) -> list[FoundTar]:
        return find_shards(
            self._root, self._options.exclude, refuse_compressed=not self._skips, on_notice=self._on_notice
        )

    def _before(self) -> tuple[DatasetState, MediaFilter | None]:
        """Return the state of the dataset, and the media whose metadata are gathered."""
        options = self._options
        before = DatasetState() if options.overwrite else read_state(self._root)
        media = options.media or (before.index.media if before.index is not None else None)
        if media is not None and options.media is None and not options.index_only:
            self._on_notice(f"metadata of media are gathered as before: {_described(media)}")
        return before, media

    def _plan(self, tars: Sequence[FoundTar], media: MediaFilter | None) -> ReadPlan:
        tasks = tuple(ScanTask(task_index, tar) for task_index, tar in enumerate(tars))
        return ReadPlan(options=self._options.lasting, media=media, tasks=tasks)

    def _is_read(self, work: WorkFolder, tar: FoundTar, media: MediaFilter | None) -> bool:
        return load_scan(work.scans, tar, media, skips_faults=self._skips) is not None

    def _splits(self) -> Splits | None:
        """Return the existing split file; None if a new one has to be made.

        Raises:
            ConfigError: there is none, and the options do not say how the shards are assigned.
        """
        choice = self._options.split
        has_choice = bool(choice.ratio or choice.parts)
        if self._options.overwrite and has_choice:
            return None
        splits = find_splits(self._root)
        if splits is None and not has_choice and not self._options.index_only:
            raise ConfigError(
                f"{self._root}: there is no split file yet: give --split-ratio 8,1,1 (train, val, test),"
                " --split-parts NAME:REGEX for each part, or --tar-index-only"
            )
        return splits

    def _known(self, splits: Splits | None) -> set[str]:
        """Return the shards that the dataset had before."""
        known: set[str] = set()
        try:
            known.update(read_info(self._root, strict=False).shard_counts)
        except StoreAwayError:
            raise
        except StoreError:
            pass  # there is none, or a damaged one, which is written anew
        if splits is not None:
            known.update(*splits.parts.values(), splits.exclude)
        return known

    def _to_read(self, found: Sequence[FoundTar], before: DatasetState, media: MediaFilter | None) -> set[str] | None:
        """Return the shards that must be read; None if nothing has changed and nothing is missing."""
        names = {tar.name for tar in found}
        needs_rows = not self._options.index_only
        if needs_rows and (before.index is None or before.index.media != media):
            return names
        changed = {tar.name for tar, is_same in zip(found, self._unchanged(found, before), strict=True) if not is_same}
        files = [INFO_NAME, UUID_NAME] if needs_rows else [INFO_NAME]
        is_same = not changed and before.shards.keys() == names and all((self._meta / name).exists() for name in files)
        if not needs_rows:
            return None if is_same else changed
        # Which rows of these the index lacks depends on all shards before them.
        incomplete = {
            name for name in names - changed if before.shards[name].count and before.shards[name].digest is None
        }
        if is_same and (not incomplete or before.index is None or before.index.duplicates == self._options.duplicates):
            return None
        return changed | incomplete

    def _unchanged(self, found: Sequence[FoundTar], before: DatasetState) -> Iterable[bool]:
        """Whether each shard is as it was; of objects, many are looked at at the same time."""
        known = [before.shards.get(tar.name) for tar in found]
        return each(self._is_unchanged, list(zip(found, known, strict=True)), [self._root])

    def _is_unchanged(self, shard: tuple[FoundTar, ShardState | None]) -> bool:
        tar, known = shard
        return (
            known is not None
            and (known.size, known.mtime_ns, known.etag or "") == (tar.size, tar.mtime_ns, tar.etag)
            and (self._skips or not known.faults)
            and is_indexed(self._root, tar.name, known)
        )

    def _index(
        self,
        work: WorkFolder,
        found: Sequence[FoundTar],
        to_read: set[str],
        before: DatasetState,
        media: MediaFilter | None,
    ) -> Indexed:
        with contextlib.ExitStack() as stack:
            writer = None if self._options.index_only else stack.enter_context(SqliteWriter(work.staged))
            committer = ShardCommitter(self._root, self._options, before, writer)
            reading = stack.enter_context(contextlib.closing(self._reading(work, found, to_read, media, committer)))
            for tar in found:
                if tar.name in to_read:
                    committer.take(next(reading))
                else:
                    committer.keep(tar.name, before.shards[tar.name])
                self._check_faults(committer, len(found))
            if writer is not None and media is not None:
                writer.add_media((), [(media.strategy, ",".join(media.patterns))])
        return Indexed(
            to_read=to_read, before=before, media=media, states=committer.states, duplicates=committer.duplicates
        )

    def _reading(
        self,
        work: WorkFolder,
        found: Sequence[FoundTar],
        to_read: set[str],
        media: MediaFilter | None,
        committer: ShardCommitter,
    ) -> Generator[ShardScan]:
        """Yield the scans of the shards to read, in order. Those that an unfinished run has read are not read again."""
        wanted = [tar for tar in found if tar.name in to_read]
        work.adopt()
        ready = {task_index for task_index, tar in enumerate(wanted) if self._is_read(work, tar, media)}
        if ready:
            self._on_notice(f"continuing the unfinished run in this folder: {len(ready):,} shards are read")
        plan = self._plan(wanted, media)
        total_bytes = sum(tar.size for tar in wanted)
        worker_bytes = WORKER_BYTES if media is None else MEDIA_WORKER_BYTES
        useful = -(-sum(tar.size for task_index, tar in enumerate(wanted) if task_index not in ready) // worker_bytes)
        num_workers = min(self._options.workers or usable_cores(), useful)
        done = done_bytes = 0

        def report() -> None:
            self._on_progress(
                EnergonProgress(
                    done=done,
                    total=len(wanted),
                    done_bytes=done_bytes,
                    total_bytes=total_bytes,
                    samples=committer.samples,
                )
            )

        if self._remote is None:
            setup = plan.setup(local_path(self._root), work.scans, adds_index=True)
            reading = read_all(plan.tasks, ready, setup, num_workers, report)
        else:
            num_threads = self._options.workers or self._remote.at_once
            reading = self._remote.read(plan, ready, work.scans, num_threads, report)
        with contextlib.closing(reading) as done_tasks:
            for tar in wanted:
                next(done_tasks)
                scan = load_scan(work.scans, tar, media, skips_faults=self._skips)
                if scan is None:
                    raise InputError(f"{self._root / tar.name}: the saved scan of this shard is incomplete; run again")
                yield scan
                done += 1
                done_bytes += tar.size
                report()

    def _check_faults(self, committer: ShardCommitter, num_shards: int) -> None:
        allowed = self._options.errors.max_errors
        limit = allowed if isinstance(allowed, int) else int(allowed * num_shards)
        if len(committer.faulty) > limit:
            last = committer.faulty[-1]
            fault = committer.states[last].faults[0]
            raise InputError(
                f"{len(committer.faulty):,} shards are malformed and --max-errors allows {limit:,}; the last one:"
                f" {self._root / last}: byte {fault.byte}: {fault.message}"
            )


def _described(media: MediaFilter) -> str:
    """Describe a filter for a message."""
    return "by glob " + ",".join(media.patterns) if media.patterns else f"by {media.strategy.lower()}"


def prepare_energon(
    path: str | os.PathLike[str],
    *,
    options: EnergonOptions | None = None,
    storage: Storage | None = None,
    on_progress: Callable[[EnergonProgress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda message: None,
) -> EnergonReport:
    """Prepare the dataset at a path, in place.

    A folder of tars gets a ``.tar.idx`` beside each tar and a folder ``.nv-meta``. Shards that an earlier run has read
    and that have not changed are not read again. The result does not depend on the number of workers. If a run ends
    early, the shards that it has read are kept for the next run. Existing files are replaced only when all new ones are
    ready.

    Args:
        path: a folder of tars; a ``.jsonl``, which gets a ``.jsonl.idx``; with ``media_only`` a folder of files; or the
            ``.yaml`` of a metadataset, which gets the indices of its joins. All of these may be at a URL.
        options: all options; None uses their defaults. At a URL, ``workers`` is how many shards or files are read at
            the same time, by default 16 shards or 32 files.
        storage: how the store of a URL is reached, or those that a metadataset names; None goes by the environment.
        on_progress: called with how far the run is.
        on_notice: called with messages about what was decided, left out or kept.

    Returns:
        What the run did.

    Raises:
        ConfigError: options contradict each other, or do not say how the shards are assigned.
        InputError: a tar is malformed or compressed, a key comes twice, or there is nothing to prepare.
        StoreError: files of an earlier run are malformed, or a join cannot be made; or the store of the URL cannot be
            reached.
        OutputError: a file cannot be written, or another run is working in this folder.
        WorkerError: worker processes ended before their work was done.
        MissingExtraError: metadata of media are asked for, and the package that reads them is not installed.
    """
    if _is_mix(path):
        check_readable(path)
    else:
        check_storage(storage, path)
    options = EnergonOptions() if options is None else options
    check_options(options)
    if is_url(path):
        return _at_url(os.fspath(path), options, storage, on_progress, on_notice)
    root = Path(path)
    if _is_single(root):
        _check_plain(root, options)
        return _lines(root) if root.suffix == ".jsonl" else _joins(path, storage, on_notice)
    if _is_of_media(root, options):
        plan = _media_plan(root, options)
        return run_media(root, plan, workers=options.workers, restart=options.restart, on_progress=on_progress)
    return ShardsRun(root, options, on_progress=on_progress, on_notice=on_notice).run()


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
    check_readable(path)
    options = EnergonOptions() if options is None else options
    check_options(options)
    if is_url(path):
        dataset = object_shards(os.fspath(path))
        if _is_of_media(dataset.root, options):
            media = object_media(os.fspath(path))
            media.plan(media.read_plan(options, _media_names(media.root, options)), restart=options.restart)
        else:
            ShardsRun(dataset, options, on_progress=lambda progress: None, on_notice=on_notice).plan()
        return
    root = Path(path)
    if _is_single(root):
        raise ConfigError(
            f"{path}: a {root.suffix} is not planned for other processes; prepare it here: it is one step"
        )
    if not _is_of_media(root, options):
        ShardsRun(root, options, on_progress=lambda progress: None, on_notice=on_notice).plan()
        return
    plan = _media_plan(root, options)
    with LocalWork(root, restart=options.restart) as work:
        if work.planned != plan:
            work.clear()
        work.plan(lambda: plan)


def _at_url(
    url: str,
    options: EnergonOptions,
    storage: Storage | None,
    on_progress: Callable[[EnergonProgress], None],
    on_notice: Callable[[str], None],
) -> EnergonReport:
    """Prepare the dataset at a URL; see `prepare_energon`.

    Raises:
        ConfigError: it is of a kind that is not prepared there, or its files cannot be written there.
        InputError: there is nothing.
    """
    dataset = _reached(url, storage)
    if _is_mix(url):
        _check_plain(url, options)
        return _joins(url, storage, on_notice)
    if _is_lines(dataset):
        _check_plain(url, options)
        index, count = resolve_name(f"{_OBJECTS}:write_remote_lines")(url, storage)
        return EnergonReport(kind="jsonl", path=url, samples=count, written=(index,))
    _check_folder(dataset)
    if not _is_of_media(dataset.root, options):
        return ShardsRun(dataset, options, on_progress=on_progress, on_notice=on_notice).run()
    media = object_media(url, storage)
    plan = media.read_plan(options, _media_names(media.root, options))
    return run_object_media(media, plan, workers=options.workers, restart=options.restart, on_progress=on_progress)


def run_object_media(
    media: ObjectMedia,
    plan: ReadPlan,
    *,
    workers: int | None,
    restart: bool,
    on_progress: Callable[[EnergonProgress], None],
) -> EnergonReport:
    """Do as `run_media` does, in a folder at a URL."""
    total = sum(len(task.names) for task in plan.tasks if isinstance(task, MediaTask))

    def report(done: int) -> None:
        on_progress(EnergonProgress(done=done, total=total, done_bytes=0, total_bytes=0, samples=done))

    num_rows = media.gather(plan, workers=workers, restart=restart, on_progress=report)
    written = (str(media.root / META_FOLDER / INDEX_NAME),)
    return EnergonReport(kind="media", path=str(media.root), samples=total, media=num_rows, written=written)


def object_shards(url: str) -> ObjectShards:
    """Return the folder at a URL, which is planned for other processes.

    Raises:
        ConfigError: it is of a kind that is not planned there, or its files cannot be written there.
        InputError: there is nothing.
    """
    dataset = _reached(url, None)
    if _is_mix(url) or _is_lines(dataset):
        suffix = dataset.root.suffix
        raise ConfigError(f"{url}: a {suffix} is not planned for other processes; prepare it here: it is one step")
    _check_folder(dataset)
    return dataset


def object_media(url: str, storage: Storage | None = None) -> ObjectMedia:
    """Return the folder of plain media at a URL."""
    found: ObjectMedia = resolve_name(f"{_OBJECTS}:ObjectMedia")(url, storage)
    return found


def _reached(url: str, storage: Storage | None) -> ObjectShards:
    """Return what may be a dataset at a URL; raises ConfigError as `_at_url` does."""
    if url.lower().startswith("http"):
        raise ConfigError(f"{url}: objects are written to s3://, gs:// and az://, not to a web server")
    # What talks to object stores is loaded when the first URL comes.
    dataset: ObjectShards = resolve_name(f"{_OBJECTS}:ObjectShards")(url, storage)
    return dataset


def _is_mix(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(".yaml")


def _is_lines(dataset: ObjectShards) -> bool:
    return str(dataset.root).endswith(".jsonl") and dataset.root.is_file()


def _check_folder(dataset: ObjectShards) -> None:
    if not dataset.root.is_dir():
        raise InputError(
            f"{dataset.root}: there are no objects below this URL; expected a folder of tars, a .jsonl, or a .yaml"
        )


def _is_single(path: Path) -> bool:
    """Whether the path is a ``.jsonl`` or a metadataset, which are prepared in one step.

    Raises:
        InputError: it is no folder either.
    """
    if path.is_file() and path.suffix in (".jsonl", ".yaml"):
        return True
    if not path.is_dir():
        raise InputError(f"{path}: expected a folder of tars, a .jsonl, or a metadataset .yaml{nearest_path(path)}")
    return False


def _is_of_media(root: AnyPath, options: EnergonOptions) -> bool:
    return options.media_only and folder_kind(root) != "webdataset"


def _check_plain(path: Path | str, options: EnergonOptions) -> None:
    if options.media is not None or options.media_only:
        raise ConfigError(f"{path}: metadata of media can only be gathered for a folder of tars or of files")
    if options.split.ratio or options.split.parts:
        raise ConfigError(f"{path}: only a folder of tars can be split; take shares of such a dataset where it is used")


def _lines(path: Path) -> EnergonReport:
    count = write_lines(path)
    return EnergonReport(kind="jsonl", path=str(path), samples=count, written=(str(index_place(path)),))


def _joins(path: str | os.PathLike[str], storage: Storage | None, on_notice: Callable[[str], None]) -> EnergonReport:
    joins = prepare_joins(path, storage)
    for place, join in joins.items():
        without = f", {join.skipped:,} without a partner left out" if join.skipped else ""
        on_notice(f"{place}: {join.rows:,} joined samples{without}")
    if not joins:
        on_notice(f"{path}: holds no join, so there is nothing to prepare")
    return EnergonReport(
        kind="metadataset",
        path=str(path),
        samples=sum(join.rows for join in joins.values()),
        written=tuple(sorted({str(join.path) for join in joins.values()})),
    )


def _media_names(root: AnyPath, options: EnergonOptions) -> list[str]:
    """Return the files that may be media.

    Raises:
        ConfigError: the options do not choose media, or the folder is one of tars.
        InputError: there are none.
    """
    if options.media is None:
        raise ConfigError("media_only needs a choice of files: by extension, by header or by glob")
    if any(file.name.endswith(".tar") for file in root.iterdir()) and folder_kind(root) is None:
        raise ConfigError(
            f"{root}: holds tars; leave out --media-only to prepare them with the metadata of their media"
        )
    names = find_files(root, options.media)
    if not names:
        raise InputError(f"{root}: no file is chosen as a medium")
    return names


def _media_plan(root: Path, options: EnergonOptions) -> ReadPlan:
    names = _media_names(root, options)
    return ReadPlan(options=options.lasting, media=options.media, tasks=tuple(media_tasks(names)))


def run_media(
    root: Path,
    plan: ReadPlan,
    *,
    workers: int | None,
    restart: bool,
    on_progress: Callable[[EnergonProgress], None],
) -> EnergonReport:
    """Gather the metadata of the files of a plan; what others have read of it is not read again."""
    tasks = [task for task in plan.tasks if isinstance(task, MediaTask)]
    total = sum(len(task.names) for task in tasks)
    with LocalWork(root, restart=restart) as work:
        if work.planned != plan:
            work.clear()  # files may have changed since they were read
        work.adopt()
        ready = [task.task_index for task in tasks if load_media(work.scans, task.task_index) is not None]
        done = 0

        def report() -> None:
            on_progress(EnergonProgress(done=done, total=total, done_bytes=0, total_bytes=0, samples=done))

        setup = plan.setup(root, work.scans, adds_index=False)
        for task_index in read_all(tasks, ready, setup, workers or usable_cores(), report):
            done += len(tasks[task_index].names)
            report()
        rows = [row for task in tasks for row in load_media(work.scans, task.task_index) or ()]
        chosen = [] if plan.media is None else [(plan.media.strategy, ",".join(plan.media.patterns))]
        for left in (root / META_FOLDER).glob(f".{INDEX_NAME}.*.tmp"):  # of a process that was killed at this point
            left.unlink()
        update_media(root, rows, chosen)
        tell_of_new_index(root)
        work.finish()
    index = str(root / META_FOLDER / INDEX_NAME)
    return EnergonReport(kind="media", path=str(root), samples=total, media=len(rows), written=(index,))
