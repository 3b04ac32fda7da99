"""An Energon dataset as a `Job`: tasks read its tars or media, and a last one makes the new files of that.

New files are made beside the old ones. Once the last task has its receipt, any process can put them into place: it
removes the info file, without which no reader opens the dataset, writes the others, and the info last.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.engine.job import Do, Phase, Show, TaskResult, Tell
from headrace.engine.poison import AnyTask
from headrace.engine.serving import load, save
from headrace.engine.shared import Shared
from headrace.engine.tasks import PlannedJob
from headrace.errors import HeadraceError, InputError, OutputError
from headrace.io import (
    AnyPath,
    AtomicFile,
    Storage,
    output_errors,
    path_at,
    read_whole,
    reader_of,
    remove_file,
    replace_file,
    sync_folder,
)
from headrace.io.finding import each
from headrace.io.replacing import move_file
from headrace.preparing.energon.merging import Merged, ShardMerger, held, merge_media
from headrace.preparing.energon.place import KIND, claimed, place_of, plan_in
from headrace.preparing.energon.plan import MergeTask, ReadPlan, found_files, plan_of
from headrace.preparing.energon.report import EnergonReport, tell_misfit
from headrace.preparing.energon.scanning import ShardScan, found_file
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.tar.index import index_path

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

        self._merging = self.plan.merging
        self.plan = msgspec.structs.replace(self.plan, root=str(output.absolute()))

    def phase(self) -> Phase | None:
        """See `Job`."""
        reading = super().phase()
        return reading if reading is not None or self.is_merged or not self.is_planned else self._merging

    def tasks(self, phase: Phase) -> Sequence[AnyTask]:
        """See `Job`."""
        return [MergeTask()] if phase == self._merging else super().tasks(phase)

    @contextmanager
    def doing(self, phase: Phase) -> Iterator[Do]:
        """See `Job`."""
        if phase == self._merging:
            yield self._merge
        else:
            with super().doing(phase) as do:
                yield do

    @property
    def is_merged(self) -> bool:
        """Whether all new files are made."""
        merging = self.receipts(self._merging)
        merging.refresh()
        return bool(merging.done)

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
        """See `Job`: put the new files into place.

        Raises:
            InputError: a tar has changed since it was found.
        """
        place = place_of(self.output)
        with claimed(self.output):
            now = plan_in(place)
            if now == self._planned:
                self._look_anew()
                self.check_inputs()
                merged = self.put_into_place()
            else:
                merged = self._merged_by_others(now)
            if plan_in(place) == self._planned:
                place.clear()
            else:
                self.shared.sweep()
        for notice in merged.notices:
            show.notice(notice)
        options, misfit = self.plan.options, None
        if merged.shards and not options.index_only:
            misfit = tell_misfit(self.output, options.dataset.name, merged.shards, show.notice)
        return msgspec.structs.replace(merged.report, misfit=misfit)

    def check_inputs(self) -> None:
        """See `Job`. Media are as they were when they were read."""
        tars = () if self.plan.is_plain else (*self.plan.files, *self.plan.unchanged)
        now = each(lambda tar: found_file(self.output, tar.name), tars, [self.output])
        for tar, found in zip(tars, now, strict=True):
            if tar != found:
                raise InputError(
                    f"{self.output / tar.name}: has changed since it was found; run again, or plan again, which reads"
                    " what is new"
                )

    def put_into_place(self) -> Merged:
        """Put the new files into place, as far as no other process has done so.

        Raises:
            OutputError, StoreError: a file cannot be moved or written; the next process goes on with it.
        """
        receipts = self.receipts(self._merging)
        receipts.refresh()
        [receipt] = receipts.done.values()
        folder, meta = receipts.folder / receipt.attempt, self.output / META_FOLDER
        with output_errors(folder, "make the folder"):
            (folder / META_FOLDER).mkdir(parents=True, exist_ok=True)
        for name in receipt.files:
            self.shared.fetch(receipts.away(receipt, name), folder / name)
        merged = load(folder / _MERGED, Merged)
        if merged is None or self._is_edited(merged, folder / META_FOLDER):
            self._merge(MergeTask(), folder, lambda counts: None)
            if (merged := load(folder / _MERGED, Merged)) is None:
                raise OutputError(f"{self.output}: the new files are lost: run again with --restart --overwrite")
        if merged.moves and not self.plan.is_plain:
            list(self.results(lambda path: path))  # what is needed is here before anything is removed
        if merged.moves and self.is_planned:  # else another process has done it meanwhile
            made = folder / META_FOLDER
            for name in merged.remove:
                if name not in merged.moves or (made / name).exists():
                    remove_file(meta / name)
            if isinstance(meta, Path):
                sync_folder(meta / "any")
            if not self.plan.is_plain:
                self._put_indexes()
            for name in merged.moves:
                move_file(made / name, meta / name)
            if isinstance(meta, Path):
                sync_folder(meta / "any")  # before the plan is removed
        self._look_anew()
        return merged

    def _is_edited(self, merged: Merged, made: Path) -> bool:
        """Whether somebody has edited a file since the new one was made that is going to take its place."""
        return any(
            (made / name).exists() and held(self.output / META_FOLDER / name) not in (before, held(made / name))
            for name, before in merged.edited.items()
        )

    def _put_indexes(self) -> None:
        scans = (scan for scan in self._scans() if scan.count)
        with ThreadPoolExecutor(_INDEXES_AT_ONCE, thread_name_prefix="headrace-index") as threads:
            while some := list(itertools.islice(scans, _INDEXES_AT_ONCE)):
                list(threads.map(self._put_index, some))

    def _put_index(self, scan: ShardScan) -> None:
        """Write the ``.tar.idx`` of a shard, unless it is right; in any thread, each of which has its own look-ups."""
        path = index_path(path_at(self.plan.root, reader_of(self.given)) / scan.tar.name)
        try:
            is_right = read_whole(path) == scan.offsets
        except FileNotFoundError:
            is_right = False
        except OSError as error:
            raise OutputError(f"{path}: cannot read: {error.strerror or error}") from error
        if is_right:
            return
        if isinstance(path, Path):
            # If this is killed, it leaves a temporary file that the next process overwrites.
            with AtomicFile(path, resumable=True) as file:
                file.write(scan.offsets)
        else:
            replace_file(path, scan.offsets)

    def _merge(self, task: MergeTask, results: Path, tell: Tell) -> TaskResult:
        """Make the new files."""
        made = results / META_FOLDER
        with output_errors(made, "make the folder"):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
        self._look_anew()
        try:
            if self.plan.is_plain:
                rows = itertools.chain.from_iterable(self.results(lambda path: load(path, list[MediaRow])))
                merged = merge_media(self.output, self.plan, list(rows), results)
            else:
                merged = ShardMerger(self.output, self.plan, results, tell).merge(self._scans())
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        save(results / _MERGED, merged)
        files = (_MERGED, *(f"{META_FOLDER}/{name}" for name in merged.moves))
        return TaskResult(files=files, counts={"samples": merged.report.samples, "bytes": self._merging.total_bytes})

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
        found = found_files(root, options, quiet, is_plain=False)
        again = plan_of(root, found, options, quiet, is_plain=False)
        if again.is_new:
            raise OutputError(f"{root}: what was planned is not there any more, and the dataset is not complete")
        with tempfile.TemporaryDirectory(prefix="headrace-energon-") as folder:
            (Path(folder) / META_FOLDER).mkdir()
            merged = ShardMerger(root, again, Path(folder), quiet).merge(iter(()))
        return msgspec.structs.replace(merged, notices=())

    def _look_anew(self) -> None:
        """Forget what was looked up at a URL."""
        if not isinstance(self.output, Path):
            self.output.objects.forget()
