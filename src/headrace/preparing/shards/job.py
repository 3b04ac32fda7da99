"""Media shards as a `Job`: the phases, and what is done between them.

    survey    the tasks of the first phase, and the hashes of tables that no single task reads whole
    write     a task for each shard

What is done in order is the local run itself: it finds the files of all tasks on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.engine.job import Job, Phase, Show, TaskResult
from headrace.engine.poison import AnyTask
from headrace.engine.serving import Done, load
from headrace.engine.shared import Shared
from headrace.io import output_errors
from headrace.preparing.output_folder import OutputFolder, mark_of
from headrace.preparing.shards.inputs import MediaPlan
from headrace.preparing.shards.messages import ShardSetup
from headrace.preparing.shards.planning import Planned
from headrace.preparing.shards.run import KIND, MAIN, PLANNED_NAME, ShardRun, fill_tasks, setup_of
from headrace.stores import Manifest


class ShardJob(Job):
    """See the module."""

    kind = KIND
    main = MAIN
    output: Path

    def __init__(self, output: Path, shared: Shared, plan: msgspec.Raw) -> None:
        super().__init__(output, shared)
        self._plan = msgspec.json.decode(plan, type=MediaPlan)
        with output_errors(self.work, "read the plan in"):
            self._mark = mark_of(self.work)

    def phase(self) -> Phase | None:
        """See `Job`. The survey is returned until the shards are planned, even if all its tasks are done."""
        if not self.is_planned:
            return None  # another process has finished the job
        planned = self._planned()
        if planned is None:
            return self._plan.surveying(self._mark)
        phase = planned.writing(self._mark)
        receipts = self.receipts(phase)
        receipts.refresh()
        return phase if receipts.open_tasks else None

    def tasks(self, phase: Phase) -> Sequence[AnyTask]:
        """See `Job`."""
        planned = self._planned() if _is_writing(phase) else None
        return self._plan.tasks.placed() if planned is None else fill_tasks(planned)

    def setup(self, phase: Phase, results: Path) -> ShardSetup:
        """See `Job`."""
        setup = setup_of(self.work.absolute(), self._plan)
        if _is_writing(phase):
            return msgspec.structs.replace(setup, shards=str(results))
        return msgspec.structs.replace(setup, survey=msgspec.structs.replace(setup.survey, folder=str(results)))

    def result(self, phase: Phase, done: Sequence[Done], results: Path) -> TaskResult:
        """See `Job`."""
        return done[0].read(TaskResult)

    def advance(self, phase: Phase, show: Show) -> None:
        """See `Job`: plan the shards, once all samples are known."""
        if not _is_writing(phase):
            with self._folder() as folder:
                if folder.resume() is None:
                    self._local_run(folder, show).survey()

    def finish(self, show: Show) -> Manifest:
        """See `Job`: put the shards and their index into place, as the end of a local run."""
        with self._folder() as folder:
            if (manifest := folder.resume()) is None:
                manifest, moves = self._local_run(folder, show).run()
                folder.commit(moves)
        return manifest

    def _planned(self) -> Planned | None:
        return load(self.work / PLANNED_NAME, Planned)

    def _folder(self) -> OutputFolder:
        return OutputFolder(self.output, overwrite=self._plan.options.overwrite, restart=False)

    def _local_run(self, folder: OutputFolder, show: Show) -> ShardRun:
        return ShardRun(folder, self._plan, on_progress=show.progress, on_notice=show.notice)


def _is_writing(phase: Phase) -> bool:
    return phase.name.startswith("write")
