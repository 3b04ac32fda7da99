"""`prepare_energon` and `plan_energon`: a folder of tars or of media, or a JSONL file.

A run writes what Energon and `EnergonStore` read. A folder is a job: `prepare_energon` does all of it, and
`plan_energon` leaves the reading to processes on any hosts, see `job`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.config import nearest_path
from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.heartbeat import Nodes
from headrace.engine.job import Show, TaskProgress
from headrace.engine.planning import NewPlan
from headrace.engine.processes import usable_cores
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError
from headrace.io import AnyPath, Storage, check_new, check_readable, check_storage, path_at, reader_at
from headrace.preparing.energon.job import EnergonJob
from headrace.preparing.energon.options import EnergonOptions, check_options, check_plain
from headrace.preparing.energon.place import KIND, claimed, place_of, plan_in
from headrace.preparing.energon.plan import ReadPlan, found_files, plan_of
from headrace.preparing.energon.report import EnergonReport
from headrace.stores.energon.config_file import folder_kind
from headrace.stores.energon.jsonl import index_place, write_lines


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
        on_progress: called a few times a second with how far the run is. The phase is ``scan-...``, which reads shards
            or files, then ``merge-...``, which makes the new files; both count samples, and of tars bytes.
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
    check_storage(storage, path)
    options = EnergonOptions() if options is None else options
    check_options(options)
    root = _reached(path, storage)
    if kind := _single(root):
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
    check_readable(path)
    options = EnergonOptions() if options is None else options
    check_options(options)
    root = _reached(path, None)
    if kind := _single(root):
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

    def opened(plan: ReadPlan) -> EnergonJob:
        return EnergonJob(root, place.shared(), msgspec.Raw(msgspec.json.encode(plan)), storage)

    with claimed(root):
        before = plan_in(place)
        busy = Nodes(place.shared()).here() if isinstance(root, Path) and before is not None else []
        if options.restart and not busy:
            place.clear()
            before = None
        job = None if before is None else opened(before)
        is_plain = options.media_only and folder_kind(root) != "webdataset"
        if job is not None and job.is_merged:
            is_plain = job.plan.is_plain
        files = found_files(root, options, on_notice, is_plain=is_plain)
        if job is not None and job.is_merged:
            if job.plan.described == (options.lasting, {*files}):
                return job
            if not isinstance(root, Path):
                raise OutputError(
                    f"{root}: an unfinished run with other options, or other shards, writes to this dataset. Give the"
                    " same command to continue it, or --restart to discard it"
                )
            job.put_into_place()
            place.clear()
        plan = plan_of(root, files, options, on_notice, is_plain=is_plain)
        if busy and before is not None and (options.restart or plan.described != before.described):
            raise OutputError(
                f"{root}: process {busy[0].process} of this host is reading this dataset, with other options or other"
                " shards: wait until it has ended, or end it first. If it is no headrace prepare, but has the number of"
                f" one that was killed, remove {place.shared().here}"
            )
        place.save(NewPlan(KIND, plan, [plan.phase, plan.merging]))
        job = opened(plan)
    if job.num_read and not is_plain:
        on_notice(f"continuing the unfinished run in this folder: {job.num_read:,} shards are read")
    return job


def _reached(path: str | os.PathLike[str], storage: Storage | None) -> AnyPath:
    """Return a path with methods.

    Raises:
        ConfigError: it is the URL of a web server.
    """
    check_new(path, overwrite=False)
    return path_at(path, reader_at(path, "mmap", storage))


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
