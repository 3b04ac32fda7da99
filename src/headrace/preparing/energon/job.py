"""An Energon dataset as a `Job` of one phase, ``scan``: a task for each shard, or for some hundred files of media.

The end is that of the local run, which finds on disk what was read. It looks at the dataset anew: a shard that has
changed or come since it was planned is read then. The shards get their ``.tar.idx`` at the end.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.engine.job import OnePhaseJob, Phase, Show
from headrace.engine.shared import Shared
from headrace.preparing.energon.media import MediaTask
from headrace.preparing.energon.report import EnergonReport
from headrace.preparing.energon.run import ShardsRun, run_media
from headrace.preparing.energon.work import KIND, MAIN, ReadPlan, ReadSetup


class EnergonJob(OnePhaseJob):
    """See the module."""

    kind = KIND
    main = MAIN
    output: Path

    def __init__(self, output: Path, shared: Shared, plan: msgspec.Raw) -> None:
        self._plan = msgspec.json.decode(plan, type=ReadPlan)
        super().__init__(output, shared, self._plan.phase, self._plan.tasks)

    def setup(self, phase: Phase, results: Path) -> ReadSetup:
        """See `Job`."""
        return self._plan.setup(self.output, results, adds_index=False)

    def finish(self, show: Show) -> EnergonReport:
        """See `Job`: write the index from what was read, and put all files into place, as the end of a local run."""
        plan = self._plan
        tasks = [task for task in plan.tasks if isinstance(task, MediaTask)]
        if tasks and not self.is_planned:
            return EnergonReport(kind="media", path=str(self.output), samples=sum(len(task.names) for task in tasks))
        if tasks:
            return run_media(self.output, plan, workers=None, restart=False, on_progress=show.progress)
        options = plan.options if self.is_planned else msgspec.structs.replace(plan.options, overwrite=False)
        return ShardsRun(self.output, options, on_progress=show.progress, on_notice=show.notice).run()
