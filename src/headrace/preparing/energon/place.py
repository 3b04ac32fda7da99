"""Where the job of a dataset lies, and where its new files go: a folder, or below a URL, for which see `objects`.

.nv-meta/.headrace/plan.json    what is read, and the options
                   scan-*/      what the tasks have read
                   merge-*/     the new files; once their receipt is there, any process can put them into place
                   lock         held by the process that plans, or that makes the new files, of a local dataset
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, Protocol

import msgspec

from headrace.engine.job import NewPlan, load_plan, save_plan
from headrace.engine.shared import Shared, SharedFolder
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder, remove_work
from headrace.io import AnyPath, Storage, output_errors, sync_folder
from headrace.preparing.energon.plan import ReadPlan
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KIND: Final = "energon"


class Place(Protocol):
    """See the module. Each of its methods raises OutputError or StoreError if the system or the store refuses it."""

    def claimed(self) -> AbstractContextManager[object]:
        """Let no other process of this host plan or make new files; raises BusyError if one does."""

    def planned(self) -> ReadPlan | None:
        """Return the plan that is there."""

    def save(self, plan: ReadPlan) -> None:
        """Write a plan."""

    def shared(self) -> Shared:
        """Return what the processes of the job share."""

    def clear(self) -> None:
        """Remove the plan, and what belongs to it."""


def place_of(root: AnyPath, storage: Storage | None) -> Place:
    """Return where the job of a dataset lies."""
    if isinstance(root, Path):
        return LocalPlace(root)
    made: Place = resolve_name("headrace.preparing.energon.objects:ObjectPlace")(str(root), storage)
    return made


class LocalPlace:
    """The `Place` of a local dataset."""

    def __init__(self, root: Path) -> None:
        self._meta = root / META_FOLDER
        self._work = self._meta / META_WORK_NAME
        self._claimed = ClaimedFolder(self._work, f"{root}: another headrace prepare is working in this folder")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """See `Place`."""
        with output_errors(self._meta, "use"):
            self._meta.mkdir(exist_ok=True)
            self._claimed.claim()
        try:
            yield
        finally:
            self._claimed.leave(self._end)
            with contextlib.suppress(OSError):
                self._meta.rmdir()  # if there is nothing in it

    def _end(self) -> None:
        if not (self._work / PLAN_NAME).exists():
            remove_work(self._work)

    def planned(self) -> ReadPlan | None:
        """See `Place`."""
        if not (self._work / PLAN_NAME).exists():
            return None
        return msgspec.json.decode(load_plan(self._work).plan, type=ReadPlan)

    def save(self, plan: ReadPlan) -> None:
        """See `Place`."""
        save_plan(self._work, NewPlan(KIND, plan, [plan.phase, plan.merging]))

    def shared(self) -> Shared:
        """See `Place`."""
        return SharedFolder(self._work)

    def clear(self) -> None:
        """See `Place`."""
        with output_errors(self._meta, "clear"):
            sync_folder(self._meta / "any")
            self._claimed.clear()
