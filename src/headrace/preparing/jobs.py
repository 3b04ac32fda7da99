"""The kinds of work of this room, whose tasks processes on any hosts may do, see `headrace.engine`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Job, Show
from headrace.engine.planning import KindOfWork
from headrace.engine.processes import usable_cores
from headrace.engine.receipts import Receipts
from headrace.engine.shared import Shared
from headrace.engine.work_folder import WORK_NAME, inside
from headrace.errors import HeadraceError, InputError, OutputError, StoreError
from headrace.io import AnyPath
from headrace.preparing.outputs.place import NothingLeftError, OutputPlace, tell_kept
from headrace.stores import Manifest
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KINDS: Final = {
    "text": KindOfWork("headrace.preparing.text_job:TextJob", inside(WORK_NAME)),
    "shards": KindOfWork("headrace.preparing.shards.job:ShardJob", inside(WORK_NAME)),
    "energon": KindOfWork("headrace.preparing.energon.job:EnergonJob", inside(f"{META_FOLDER}/{META_WORK_NAME}")),
}
"""The kinds of work of this room."""


def _is_worth_keeping(job: Job, receipts: Receipts, error: BaseException) -> bool:
    """Whether the same command could go on: not after a defect, nor if nothing is done, or inputs have changed."""
    if isinstance(error, NothingLeftError) or type(error) is HeadraceError:
        return False
    try:
        receipts.refresh()
        job.check_inputs()
    except InputError:
        return False
    except (OutputError, StoreError):  # if the store is away, the same command may go on later
        return True
    return len(receipts.done) > len(receipts.failed)


def do_here(place: OutputPlace, make: Callable[[AnyPath, Shared], Job], *, workers: int | None, show: Show) -> Manifest:
    """Do a run that was planned in a place, on this host.

    If it ends without output, and nothing was done before that the same command could go on with, nothing stays.

    Args:
        place: where it was planned; it is not held any more.
        make: makes the job, given the output and what its processes share.
        workers: number of worker processes; None uses the number of cores that this process may run on.
        show: what tells how far it is.

    Raises:
        Exception: what ended the run.
    """
    try:
        job = make(place.output, place.shared())
        phase = job.phase()
    except (OutputError, StoreError):
        with place:
            completed = place.resume()
        if completed is None:
            raise
        return completed[0]  # another process has completed the run meanwhile
    receipts = None if phase is None else job.receipts(phase)
    if receipts is not None and receipts.done:
        done = f"{len(receipts.done):,} of {len(receipts.tasks):,} tasks are done"
        show.notice(f"continuing the unfinished run in this folder: {done}")
    try:
        found: Manifest = drive(job, LocalExecutor(workers=workers or usable_cores()), show)
    except BaseException as error:
        is_worth = receipts is None or _is_worth_keeping(job, receipts, error)
        if not is_worth and not place.is_continued:
            with contextlib.suppress(HeadraceError), place:
                place.discard()
        elif is_worth and not isinstance(error, HeadraceError):
            show.notice("what is done so far is kept: the same command goes on from there")
        else:
            tell_kept(error, job.shared)
        raise
    return found
