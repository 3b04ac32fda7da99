"""An Energon dataset as a `Job`: tasks read its tars or media, and the end merges what they have read.

New files are made beside the old ones, by a process that then creates their receipt. From there on any process can put
them into place: it removes the info file, without which no reader opens the dataset, writes the others, and the info
last.
"""

from __future__ import annotations

import contextlib
import itertools
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from headrace.engine.job import Phase, Show
from headrace.engine.receipts import Receipt
from headrace.engine.serving import load, save
from headrace.engine.shared import Shared
from headrace.engine.tasks import PlannedJob
from headrace.errors import HeadraceError, OutputError
from headrace.io import AnyPath, Storage, hash_bytes, output_errors, remove_file, sync_folder, unique_name
from headrace.preparing.energon.merging import Merged, ShardMerger, merge_media
from headrace.preparing.energon.place import KIND, Place, place_of
from headrace.preparing.energon.plan import ReadPlan, found_files, plan_of
from headrace.preparing.energon.report import EnergonReport, tell_misfit
from headrace.preparing.energon.scanning import ShardScan
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.sqlite_index import MediaRow

_MERGED: Final = "merged"
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
        self._merging = self.receipts(
            Phase(name=f"merge-{hash_bytes(msgspec.json.encode(self._planned))[:8]}", num_tasks=1)
        )

    @property
    def is_merged(self) -> bool:
        """Whether all new files are made."""
        self._merging.refresh()
        return bool(self._merging.done)

    @property
    def num_read(self) -> int:
        """How many files are read."""
        done = self.known_receipts().done
        return sum(len(task.files) for task in self.plan.tasks if task.task_index in done or self.plan.kept(task))

    def abandon(self) -> None:
        """Remove the plan if nothing is read, since the same run would fail again."""
        place = place_of(self.output, self.given)
        with contextlib.suppress(HeadraceError), place.claimed():
            if not self.num_read and place.planned() == self._planned:
                place.clear()

    def finish(self, show: Show) -> EnergonReport:
        """See `Job`: make the new files, and put them into place."""
        place = place_of(self.output, self.given)
        with place.claimed():
            if (now := place.planned()) == self._planned:
                if not self.is_merged:
                    self._merge(show)
                merged = self.put_into_place(place)
            else:
                merged = self._merged_by_others(now)
            if place.planned() == self._planned:
                place.clear()
            else:
                self.shared.sweep()
        options, misfit = self.plan.options, None
        if merged.shards and not options.index_only:
            misfit = tell_misfit(self.output, options.dataset.name, merged.shards, show.notice)
        return msgspec.structs.replace(merged.report, misfit=misfit)

    def put_into_place(self, place: Place) -> Merged:
        """Put the new files into place, as far as no other process has done so.

        Raises:
            OutputError, StoreError: a file cannot be moved or written; the next process goes on with it.
        """
        [receipt] = self._merging.done.values()
        folder = self._merging.folder / receipt.attempt
        with output_errors(folder, "make the folder"):
            (folder / META_FOLDER).mkdir(parents=True, exist_ok=True)
        for name in receipt.files:
            self.shared.fetch(self._merging.away(receipt, name), folder / name)
        merged = load(folder / _MERGED, Merged)
        if merged is None:
            raise OutputError(f"{self.output}: the new files are lost: run again with --restart --overwrite")
        if merged.moves and self.is_planned:  # else another process has done it meanwhile
            made = folder / META_FOLDER
            for name in merged.remove:
                if name not in merged.moves or (made / name).exists():
                    remove_file(self.output / META_FOLDER / name)
            if isinstance(self.output, Path):
                sync_folder(self.output / META_FOLDER / "any")
            if not self.plan.is_plain:
                self._put_indexes(place)
            for name in merged.moves:
                place.put(name, made / name)
        self._look_anew()
        return merged

    def _put_indexes(self, place: Place) -> None:
        scans = (scan for scan in self._scans() if scan.count)
        with ThreadPoolExecutor(_INDEXES_AT_ONCE, thread_name_prefix="headrace-index") as threads:
            while some := list(itertools.islice(scans, _INDEXES_AT_ONCE)):
                list(threads.map(place.put_index, some))

    def _merge(self, show: Show) -> None:
        """Make the new files, and create their receipt."""
        receipts, began_s = self._merging, time.time()
        name = f"{receipts.name}/{unique_name()}"
        folder = self.shared.here / name
        with output_errors(folder, "make the folder"):
            shutil.rmtree(receipts.folder, ignore_errors=True)  # what a process was making that was killed
            (folder / META_FOLDER).mkdir(parents=True)
        receipts.prepare()
        self._look_anew()
        try:
            merged = self._merged(folder, show)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        save(folder / _MERGED, merged)
        files = (_MERGED, *(f"{META_FOLDER}/{one}" for one in merged.moves))
        self.shared.publish(name, files)
        made = Receipt(
            task_index=0,
            attempt=folder.name,
            host=platform.node(),
            finished_s=time.time(),
            seconds=time.time() - began_s,
            files=files,
        )
        if not receipts.create(made):
            self.shared.withdraw(name, files)
            receipts.refresh()

    def _merged(self, folder: Path, show: Show) -> Merged:
        if self.plan.is_plain:
            rows = self.results(lambda path: load(path, list[MediaRow]))
            return merge_media(self.output, self.plan, list(itertools.chain.from_iterable(rows)), folder)
        return ShardMerger(self.output, self.plan, folder, show).merge(self._scans())

    def _scans(self) -> Iterator[ShardScan]:
        """Yield what was read of each tar, in the order of the plan."""
        return itertools.chain.from_iterable(self.results(lambda path: load(path, list[ShardScan])))

    def _merged_by_others(self, now: ReadPlan | None) -> Merged:
        """Return what another process has merged, which has completed the dataset; nothing else may be planned now."""
        plan, root, quiet = self.plan, self.output, Show()
        self._look_anew()
        if now is not None:
            raise OutputError(f"{root}: another run was planned in place of this one: complete that, or run again")
        if plan.is_plain:
            return Merged(EnergonReport(kind="media", path=str(root), samples=len(plan.files)))
        options = msgspec.structs.replace(plan.options, overwrite=False)
        found = found_files(root, options, quiet.notice, is_plain=False)
        again = plan_of(root, found, options, quiet.notice, is_plain=False)
        if again.is_new:
            raise OutputError(f"{root}: what was planned is not there any more, and the dataset is not complete")
        with tempfile.TemporaryDirectory(prefix="headrace-energon-") as folder:
            (Path(folder) / META_FOLDER).mkdir()
            return ShardMerger(root, again, Path(folder), quiet).merge(iter(()))

    def _look_anew(self) -> None:
        """Forget what was looked up at a URL."""
        if not isinstance(self.output, Path):
            self.output.objects.forget()
