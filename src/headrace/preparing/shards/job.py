"""Media shards as a `Job` of one phase, ``pack``: a task for each shard, or for some, and for the hashes of tables.

The end moves the shards into place, and writes the table of origins, the files of ``.nv-meta`` and the manifest.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from headrace.engine.job import Phase, Show, TaskResult
from headrace.engine.receipts import Receipts
from headrace.engine.serving import Failed, load
from headrace.engine.shared import Shared
from headrace.engine.tasks import PlannedJob
from headrace.errors import InputError
from headrace.io import AnyPath, Storage
from headrace.preparing.energon.report import tell_misfit
from headrace.preparing.ledger import described
from headrace.preparing.outputs.folder import output_at
from headrace.preparing.shards.finishing import Finish
from headrace.preparing.shards.packing import BadSampleError, PackedTask
from headrace.preparing.shards.plan import MediaPlan, PackSetup
from headrace.preparing.sources import check_all
from headrace.stores import ErrorEntry, Manifest
from headrace.stores.energon.config_file import DATASET_NAME

KIND: Final = "shards"


class ShardJob(PlannedJob):
    """See the module.

    Args:
        output: the output.
        shared: what the processes of the job share.
        plan: its plan, as JSON.
        storage: how the stores of URLs are reached; None goes by the environment.
    """

    kind = KIND
    plan_type = MediaPlan
    delivers = True
    num_results = 1
    plan: MediaPlan
    given: PackSetup

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw, storage: Storage | None = None) -> None:
        super().__init__(output, shared, plan)
        listed = shared.place(self.plan.list_name)
        self.given = PackSetup(listed=str(listed.absolute() if isinstance(listed, Path) else listed), storage=storage)

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        """See `Job`. A bad sample is so on every host."""
        error = failed.error()
        if isinstance(error, BadSampleError):
            return TaskResult(error=str(error))
        raise error

    def check(self, phase: Phase, receipts: Receipts) -> None:
        """See `Job`: refuse more bad samples than the options allow.

        Raises:
            InputError: there are too many.
        """
        num_bad, allowed = receipts.counts["bad"], self.plan.options.errors.max_errors
        if isinstance(allowed, int) and num_bad > allowed:
            last = [receipt.value for receipt in receipts.done.values() if receipt.value is not None][-1]
            raise InputError(
                f"{num_bad:,} bad samples, but max_errors allows {allowed:,}; the last one:"
                f" {described(msgspec.convert(last, ErrorEntry))} Nothing was written."
            )

    def finish(self, show: Show) -> Manifest:
        """See `Job`."""
        overwrite = self.plan.options.overwrite
        with output_at(self.output, overwrite=overwrite, restart=False) as folder:
            if (found := folder.resume()) is not None:
                return found[0]
            self.check_inputs()
            receipts = self.known_receipts()
            if receipts.failed:
                raise InputError(receipts.failed[min(receipts.failed)].error)
            end = Finish(self.plan, self.results(_read))
            manifest, made = end.write(folder.work)
            folder.put(partial(self.gather, [receipts], end.sums), end.sums, made)
            if self.plan.options.output.field_map:
                tell_misfit(folder.output, DATASET_NAME, end.names, show.notice)
        return manifest

    def check_inputs(self) -> None:
        """See `Job`."""
        found = [file for given in self.plan.inputs for file in (given.table, given.captions) if file is not None]
        check_all([msgspec.structs.replace(file, storage=self.given.storage) for file in found])


def _read(path: Path) -> tuple[Path, PackedTask] | None:
    packed = load(path, PackedTask)
    return None if packed is None else (path, packed)
