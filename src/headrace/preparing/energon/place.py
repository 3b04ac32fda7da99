"""Where the job of a dataset lies: a folder in its ``.nv-meta``, or the same below a URL, for which see `objects`.

.nv-meta/.headrace/plan.json    what is read, and the options
                   scan-*/      what the tasks have read
                   merge-*/     the new files; once their receipt is there, any process can put them into place
                   lock         held by the process that plans, or that puts new files into place, of a local dataset
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, Protocol

import msgspec

from headrace.engine.job import NewPlan, PlanFile, load_plan, save_plan
from headrace.engine.shared import Shared, SharedFolder
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder, remove_work
from headrace.io import AnyPath, Storage, output_errors
from headrace.preparing.energon.plan import ReadPlan
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KIND: Final = "energon"


class Place(Protocol):
    """See the module. Each of its methods raises OutputError or StoreError if the system or the store refuses it."""

    def planned(self) -> PlanFile | None:
        """Return the plan that is there."""

    def save(self, new: NewPlan) -> None:
        """Write a plan."""

    def shared(self) -> Shared:
        """Return what the processes of the job share."""

    def clear(self) -> None:
        """Remove the plan, and what belongs to it."""


def place_of(root: AnyPath, storage: Storage | None) -> Place:
    """Return where the job of a dataset lies."""
    if isinstance(root, Path):
        return LocalPlace(root / META_FOLDER / META_WORK_NAME)
    made: Place = resolve_name("headrace.preparing.energon.objects:ObjectPlace")(str(root / META_FOLDER), storage)
    return made


def plan_in(place: Place) -> ReadPlan | None:
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


class LocalPlace:
    """The `Place` of a local dataset."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def planned(self) -> PlanFile | None:
        """See `Place`."""
        return load_plan(self._work) if (self._work / PLAN_NAME).exists() else None

    def save(self, new: NewPlan) -> None:
        """See `Place`."""
        save_plan(self._work, new)

    def shared(self) -> Shared:
        """See `Place`."""
        return SharedFolder(self._work)

    def clear(self) -> None:
        """See `Place`."""
        with output_errors(self._work, "clear"):
            ClaimedFolder(self._work, "").clear()
