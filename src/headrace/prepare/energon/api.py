"""`prepare_energon`: tars, a JSONL file, a folder of media or a metadataset -> what Energon and `EnergonStore` read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ConfigError, InputError
from headrace.io import check_local
from headrace.prepare.energon.media_files import find_files, load_media, media_tasks
from headrace.prepare.energon.metadataset import prepare_joins
from headrace.prepare.energon.options import EnergonOptions, check_options
from headrace.prepare.energon.report import EnergonProgress, EnergonReport
from headrace.prepare.energon.run import ShardsRun
from headrace.prepare.energon.state import tell_of_new_index
from headrace.prepare.energon.work import WorkFolder
from headrace.prepare.energon.worker import ReadSetup, read_all
from headrace.prepare.text_run import usable_cores
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER, folder_kind
from headrace.stores.energon.jsonl import index_place, write_lines
from headrace.stores.energon.sqlite_writer import update_media


def prepare_energon(
    path: str | os.PathLike[str],
    *,
    options: EnergonOptions | None = None,
    on_progress: Callable[[EnergonProgress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda message: None,
) -> EnergonReport:
    """Prepare what lies at a path, in place.

    A folder of tars gets a ``.tar.idx`` beside each and a ``.nv-meta``. Shards that an earlier run has read, and that
    are as they were, are not read again. The result does not depend on the number of workers. What an ended run has
    read is kept, and nothing that is there is replaced before all that is new is ready.

    Args:
        path: a folder of tars; a ``.jsonl``, which gets a ``.jsonl.idx``; with ``media_only`` a folder of files; or the
            ``.yaml`` of a metadataset, of which the join indices are made.
        options: see there.
        on_progress: is told how far it is.
        on_notice: is told what was decided, left out or kept.

    Raises:
        ConfigError: options that contradict each other, or do not say how the shards are dealt.
        InputError: a malformed or compressed tar, a key that is there twice, nothing to prepare; names the place.
        StoreError: what is there of an earlier run is malformed; or a join cannot be made.
        OutputError: the system refuses, or another run is at work there.
        WorkerError: worker processes ended.
        MissingExtraError: facts of media are asked for, and what reads them is not installed.
    """
    check_local(path)
    options = EnergonOptions() if options is None else options
    check_options(options)
    root = Path(path)
    if root.is_file() and root.suffix in (".jsonl", ".yaml"):
        _check_plain(root, options)
        return _lines(root) if root.suffix == ".jsonl" else _joins(root, on_notice)
    if not root.is_dir():
        raise InputError(f"{path}: expected a folder of tars, a .jsonl, or the .yaml of a metadataset")
    if options.media_only and folder_kind(root) != "webdataset":
        return _media(root, options, on_progress)
    return ShardsRun(root, options, on_progress=on_progress, on_notice=on_notice).run()


def _check_plain(path: Path, options: EnergonOptions) -> None:
    if options.media is not None or options.media_only:
        raise ConfigError(f"{path}: metadata of media is gathered for folders of tars or of files")
    if options.split.ratio or options.split.parts:
        raise ConfigError(f"{path}: only folders of tars are split; take shares of such a dataset where it is used")


def _lines(path: Path) -> EnergonReport:
    count = write_lines(path)
    return EnergonReport(kind="jsonl", path=str(path), samples=count, written=(str(index_place(path)),))


def _joins(path: Path, on_notice: Callable[[str], None]) -> EnergonReport:
    joins = prepare_joins(path)
    for place, join in joins.items():
        without = f", {join.skipped:,} left out without a partner" if join.skipped else ""
        on_notice(f"{place}: {join.rows:,} joined samples{without}")
    if not joins:
        on_notice(f"{path}: holds no join, so there is nothing to prepare")
    return EnergonReport(
        kind="metadataset",
        path=str(path),
        samples=sum(join.rows for join in joins.values()),
        written=tuple(sorted({str(join.path) for join in joins.values()})),
    )


def _media(root: Path, options: EnergonOptions, on_progress: Callable[[EnergonProgress], None]) -> EnergonReport:
    if options.media is None:
        raise ConfigError("of a folder of media, say which files: by extension, by header or by glob")
    if any(root.glob("*.tar")) and folder_kind(root) is None:
        raise ConfigError(f"{root}: holds tars; leave out --media-only to prepare them with their media")
    names = find_files(root, options.media)
    if not names:
        raise InputError(f"{root}: no file that may be a medium")
    with WorkFolder(root, restart=True) as work:
        tasks = media_tasks(names)
        setup = ReadSetup(
            parent=os.getpid(), root=str(root.absolute()), scans=str(work.scans.absolute()), media=options.media,
            skips_faults=False,
        )  # fmt: skip
        done = 0

        def report() -> None:
            on_progress(EnergonProgress(done=done, total=len(names), done_bytes=0, total_bytes=0, samples=done))

        for turn in read_all(tasks, setup, options.workers or usable_cores(), report):
            done += len(tasks[turn].names)
            report()
        rows = [row for task in tasks for row in load_media(work.scans, task.turn)]
        update_media(root, rows, [(options.media.strategy, ",".join(options.media.patterns))])
        tell_of_new_index(root)
        work.finish()
    index = str(root / META_FOLDER / INDEX_NAME)
    return EnergonReport(kind="media", path=str(root), samples=len(names), media=len(rows), written=(index,))
