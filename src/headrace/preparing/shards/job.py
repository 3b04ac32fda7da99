"""Media shards as a `Job`: the phases, and what is done between them.

    survey    the tasks of the first phase, and the hashes of tables that no single task reads whole
    write     a task for each shard

What is done in order is the local run itself: it finds the files of all tasks on disk. At a URL it fetches what it
needs of the surveys, and what it has planned is shown to all. A task that writes a shard reads its list and its parts
of the spools there, and uploads the shard to the place where it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Final

import msgspec

from headrace.engine.job import Job, Phase, Show, TaskResult
from headrace.engine.ordered import OrderedStep, moved
from headrace.engine.poison import AnyTask
from headrace.engine.receipts import Receipt, Receipts
from headrace.engine.serving import Done, load
from headrace.engine.shared import Shared, remove_files
from headrace.io import AnyPath, output_errors
from headrace.preparing.output_folder import OutputFolder, mark_of, output_at
from headrace.preparing.shards.finishing import ORIGINS_NAME
from headrace.preparing.shards.inputs import MediaPlan
from headrace.preparing.shards.messages import ShardSetup, SpoolObject, spool_path
from headrace.preparing.shards.planning import Planned
from headrace.preparing.shards.run import (
    KIND,
    LISTINGS_NAME,
    LISTS_NAME,
    MAIN,
    PLANNED_NAME,
    ShardRun,
    fill_tasks,
    setup_of,
)
from headrace.stores import Manifest

_SHARD_FILES: Final = (".tar", ".tar.idx")


class ShardJob(Job):
    """See the module."""

    kind = KIND
    main = MAIN

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw) -> None:
        super().__init__(output, shared)
        self._plan = msgspec.json.decode(plan, type=MediaPlan)
        with output_errors(self.work, "read the plan in"):
            self._mark = mark_of(self.work)
        self._planning = OrderedStep(self, f"plan-{self._mark}", "plans the shards")
        self._known: Planned | None = None

    def phase(self) -> Phase | None:
        """See `Job`. The survey is returned until the shards are planned, even if all its tasks are done."""
        if not self.is_planned:
            return None  # another process has finished the job
        planned = self._planned()
        if planned is None:
            return self._plan.surveying(self._mark)
        phase = planned.writing(self._mark)
        return phase if self._read(phase).open_tasks else None

    def tasks(self, phase: Phase) -> Sequence[AnyTask]:
        """See `Job`."""
        planned = self._planned() if _is_writing(phase) else None
        return self._plan.tasks.placed() if planned is None else fill_tasks(planned)

    def setup(self, phase: Phase, results: Path) -> ShardSetup:
        """See `Job`."""
        setup = setup_of(self.work.absolute(), self._plan)
        if _is_writing(phase):
            setup = msgspec.structs.replace(setup, shards=str(results))
            planned = self._planned()
            if planned is not None and not self.shared.is_folder:
                lists = str(self._planning.place(LISTS_NAME))
                setup = msgspec.structs.replace(setup, lists=lists, spools=self._spools(planned))
            return setup
        survey = msgspec.structs.replace(setup.survey, folder=str(results))
        if not self.shared.is_folder:
            survey = msgspec.structs.replace(survey, listings=str(self.shared.place(LISTINGS_NAME)))
        return msgspec.structs.replace(setup, survey=survey)

    def _spools(self, planned: Planned) -> dict[int, SpoolObject]:
        receipts = self._read(self._plan.surveying(self._mark))
        found = {}
        for task_index, size in planned.spools.items():
            name = receipts.away(receipts.done[task_index], spool_path("", task_index).name)
            found[task_index] = SpoolObject(str(self.shared.place(name)), size)
        return found

    def result(self, phase: Phase, done: Sequence[Done], results: Path) -> TaskResult:
        """See `Job`."""
        return done[0].read(TaskResult)

    def publish(self, folder: str, receipt: Receipt) -> Receipt:
        """See `Job`: a shard of an output at a URL goes where it will stay."""
        shard = [name for name in receipt.files if name.endswith(_SHARD_FILES)]
        if self.shared.is_folder or not shard:
            return super().publish(folder, receipt)
        if self.is_planned:
            place = self.shared.here / folder
            send = resolve_name("headrace.preparing.uploaded_folder:send_alone")  # loaded when the first URL comes
            send(self.shared.address, {name: place / name for name in shard})
            remove_files(place, shard)
            self.shared.publish(folder, [name for name in receipt.files if name not in shard])
        return receipt

    def advance(self, phase: Phase, show: Show) -> None:
        """See `Job`: plan the shards, once all samples are known."""
        if _is_writing(phase):
            return
        if not self.shared.is_folder:
            self._planning.run(self._plan_shards, show)
            return
        with self._folder() as folder:
            if folder.resume() is None:
                self._local_run(folder, show).survey()

    def _plan_shards(self, place: Path, show: Show) -> Sequence[str]:
        """Plan the shards, and put what the next phase needs of it into a folder; return the names of the files."""
        with self._folder() as folder:
            if folder.resume() is not None:
                return ()
            self._local_run(folder, show).survey()
            found = [path for name in (LISTS_NAME, ORIGINS_NAME) for path in sorted((folder.work / name).rglob("*"))]
            names = [path.relative_to(folder.work).as_posix() for path in found if path.is_file()]
            folder.leave_to_others()
            return moved([PLANNED_NAME, *names], folder.work, place)

    def finish(self, show: Show) -> Manifest:
        """See `Job`: put the shards and their index into place, as the end of a local run."""
        with self._folder() as folder:
            if (manifest := folder.resume()) is None:
                if not self.shared.is_folder and not (folder.work / PLANNED_NAME).exists():
                    origins = [name for name in self._planning.files() if name.startswith(f"{ORIGINS_NAME}/")]
                    self._planning.fetch([*origins, PLANNED_NAME], folder.work)
                manifest, moves = self._local_run(folder, show).run()
                folder.commit(moves)
        return manifest

    def _planned(self) -> Planned | None:
        """Return the plan of the shards; None if they are not planned yet."""
        if self.shared.is_folder:
            return load(self.work / PLANNED_NAME, Planned)
        if self._known is None and self._planning.files():
            self._planning.fetch([PLANNED_NAME], self.work)
            self._known = load(self.work / PLANNED_NAME, Planned)
        return self._known

    def _read(self, phase: Phase) -> Receipts:
        receipts = self.receipts(phase)
        receipts.refresh()
        return receipts

    def _folder(self) -> OutputFolder:
        return output_at(self.output, overwrite=self._plan.options.overwrite, restart=False)

    def _local_run(self, folder: OutputFolder, show: Show) -> ShardRun:
        return ShardRun(folder, self._plan, read=self._read, on_progress=show.progress, on_notice=show.notice)


def _is_writing(phase: Phase) -> bool:
    return phase.name.startswith("write")
