"""An Energon dataset as a `Job` of one phase, ``scan``: a task for each shard, or for some hundred files of media.

The end is that of the local run, which finds on disk what was read. It looks at the dataset anew: a shard that has
changed or come since it was planned is read then. The shards get their ``.tar.idx`` at the end.

At a URL what was read is fetched, and one process at a time completes the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.engine.job import OnePhaseJob, Phase, Show
from headrace.engine.ordered import OrderedStep
from headrace.engine.shared import Shared
from headrace.io import AnyPath
from headrace.preparing.energon.media import MediaTask
from headrace.preparing.energon.options import EnergonOptions
from headrace.preparing.energon.report import EnergonReport
from headrace.preparing.energon.run import ShardsRun, object_media, object_shards, run_media, run_object_media
from headrace.preparing.energon.work import KIND, MAIN, ReadPlan, ReadSetup


class EnergonJob(OnePhaseJob):
    """See the module."""

    kind = KIND
    main = MAIN

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw) -> None:
        self._plan = msgspec.json.decode(plan, type=ReadPlan)
        super().__init__(output, shared, self._plan.phase, self._plan.tasks)
        self._finishing = OrderedStep(self, f"finish-{self._plan.phase.name}", "completes the dataset")

    def setup(self, phase: Phase, results: Path) -> ReadSetup:
        """See `Job`."""
        return self._plan.setup(self.output, results, adds_index=False)

    def finish(self, show: Show) -> EnergonReport:
        """See `Job`: write the index from what was read, and put all files into place, as the end of a local run."""
        plan = self._plan
        tasks = [task for task in plan.tasks if isinstance(task, MediaTask)]
        root = self.output
        if not isinstance(root, Path):
            return self._finish_at(str(root), show, tasks)
        if tasks and not self.is_planned:
            return EnergonReport(kind="media", path=str(root), samples=sum(len(task.names) for task in tasks))
        if tasks:
            return run_media(root, plan, workers=None, restart=False, on_progress=show.progress)
        return ShardsRun(root, self._options, on_progress=show.progress, on_notice=show.notice).run()

    @property
    def _options(self) -> EnergonOptions:
        """The options of the run; once the job is completed, there is nothing to overwrite."""
        options = self._plan.options
        return options if self.is_planned else msgspec.structs.replace(options, overwrite=False)

    def _finish_at(self, url: str, show: Show, tasks: Sequence[MediaTask]) -> EnergonReport:
        reports: list[EnergonReport] = []
        plan = self._plan

        def run(show: Show) -> None:
            if tasks:
                media = object_media(url)
                found = run_object_media(media, plan, workers=None, restart=False, on_progress=show.progress)
            else:
                shards = object_shards(url)
                found = ShardsRun(shards, self._options, on_progress=show.progress, on_notice=show.notice).run()
            reports.append(found)

        def do(place: Path, show: Show) -> Sequence[str]:
            run(show)
            return ()

        if self.is_planned:
            try:
                self._finishing.run(do, show)
            finally:
                self.shared.sweep()
        if not reports and tasks:  # another process has completed the dataset
            return EnergonReport(kind="media", path=url, samples=sum(len(task.names) for task in tasks))
        if not reports:
            run(show)
        return reports[0]
