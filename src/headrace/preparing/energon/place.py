"""Where the job of a dataset lies: a folder in its ``.nv-meta``, or the same below a URL.

.nv-meta/.headrace/plan.json    what is read, and the options
                   scan-*/      what the tasks have read
                   merge-*/     the new files; once their receipt is there, any process can put them into place
                   lock         held by the process that plans, or that puts new files into place, of a local dataset

Nothing is written beside the job before all new files are ready. Then the info file is removed, without which no reader
opens the dataset; the others are written, and a new info file last. If the process is killed in between, any other one,
on any host, carries out the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from headrace.engine.planning import JobPlace, job_at
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder, remove_work
from headrace.io import AnyPath, output_errors
from headrace.preparing.energon.plan import ReadPlan
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KIND: Final = "energon"


def place_of(root: AnyPath) -> JobPlace:
    """Return where the job of a dataset lies."""
    return job_at(root / META_FOLDER / META_WORK_NAME)


def plan_in(place: JobPlace) -> ReadPlan | None:
    """Return the plan that is in a place."""
    found = place.planned()
    return None if found is None else msgspec.json.decode(found.plan, type=ReadPlan)


@contextlib.contextmanager
def claimed(root: AnyPath) -> Iterator[None]:
    """Let no other process plan a local dataset, or put its new files into place, meanwhile.

    Raises:
        BusyError: one does.
        OutputError: the system refuses it.
    """
    meta = root / META_FOLDER
    if not isinstance(meta, Path):
        yield
        return
    work = meta / META_WORK_NAME
    folder = ClaimedFolder(work, f"{root}: another headrace prepare is working in this folder")
    with output_errors(meta, "use"):
        meta.mkdir(exist_ok=True)
        folder.claim()
    try:
        yield
    finally:
        folder.leave(lambda: None if (work / PLAN_NAME).exists() else remove_work(work))
        with contextlib.suppress(OSError):
            meta.rmdir()  # if there is nothing in it
