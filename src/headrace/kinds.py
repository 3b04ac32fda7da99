"""All kinds of work that processes on any hosts may do, and where each has its plan.

    text, shards, energon     headrace prepare           DIR/.headrace, DIR/.nv-meta/.headrace
    copy                      merge, convert, split      DIR/.headrace
    measure                   headrace measure           .FACTS.measuring, beside the folder of facts
    decode                    headrace check --decode    .DATASET.checking, beside the dataset

Of an output at a URL the same names stand for URLs.

This module imports ``headrace.engine``, and every room that has a kind of work.
"""

from __future__ import annotations

import os
from typing import Any, Final

from headrace.datasets.measuring.running import WORK as MEASURE_WORK
from headrace.engine import planning
from headrace.engine.executors import Executor, drive
from headrace.engine.job import Job, Show
from headrace.engine.work_folder import WORK_NAME, inside
from headrace.errors import HeadraceError
from headrace.inspect import sample_checks
from headrace.io import check_readable, path_at
from headrace.preparing.outputs.folder import output_at, tell_kept
from headrace.stores import MANIFEST_NAME, load_manifest
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KINDS: Final = {
    "text": planning.KindOfWork("headrace.preparing.text_job:TextJob", inside(WORK_NAME)),
    "shards": planning.KindOfWork("headrace.preparing.shards.job:ShardJob", inside(WORK_NAME)),
    "energon": planning.KindOfWork(
        "headrace.preparing.energon.job:EnergonJob", inside(f"{META_FOLDER}/{META_WORK_NAME}")
    ),
    "copy": planning.KindOfWork("headrace.copying.jobs:CopyJob", inside(WORK_NAME)),
    "measure": planning.KindOfWork("headrace.inspect.measure_job:NamedMeasureJob", MEASURE_WORK),
    "decode": planning.KindOfWork("headrace.inspect.sample_checks:DecodeJob", sample_checks.WORK),
}


def open_job(output: str | os.PathLike[str], *, checks_software: bool = True) -> Job:
    """Open the job that was planned for an output, of whatever kind.

    Args:
        output: the output: a folder, a URL, or the dataset that is checked. If several jobs are planned for it, the
            first in the order of `KINDS` is opened.
        checks_software: whether this host must have the software of the plan, without which it may do no task.

    Raises:
        OutputError: nothing is planned there, or the plan cannot be read.
        ConfigError: the software of this host differs from that of the plan.

    Example:
        >>> report = headrace.convert("stores/web", "planned", format="keyed", plan_only=True)
        >>> job = headrace.kinds.open_job("planned")
        >>> job.kind, job.phase().num_tasks
        ('copy', 1)
    """
    check_readable(output)
    return planning.open_job(output, KINDS, checks_software=checks_software)


def kind_of(output: str | os.PathLike[str]) -> str:
    """Return the kind of the job that is planned for an output, or else of what was completed there.

    Raises:
        OutputError: nothing is planned there, and nothing is known to be complete.
    """
    if kind := planning.kind_at(output, KINDS):
        return kind
    if sample_checks.last_report(output) is not None:
        return "decode"
    if (path_at(output) / MANIFEST_NAME).exists():
        return "shards" if any(shard.format == "tar" for shard in load_manifest(output).outputs) else "text"
    return open_job(output, checks_software=False).kind


def finish_job(output: str | os.PathLike[str], executor: Executor, show: Show) -> Any:
    """Take the job that was planned for an output to its end, and return its report; `Handed` if it goes on elsewhere.

    If a run of ``headrace prepare``, or the last check that was planned, is complete already, its report is returned.

    Raises:
        OutputError: nothing was planned there.
        Exception: see `headrace.engine.executors.drive`.
    """
    check_readable(output)
    if not planning.kind_at(output, KINDS):
        if (report := sample_checks.last_report(output)) is not None:
            sample_checks.clear_left(output)
            return report
        if (path_at(output) / MANIFEST_NAME).exists():
            with output_at(output, overwrite=False, restart=False) as place:
                place.clear_left()
            show.notice(f"{output}: the output is complete already")
            return load_manifest(path_at(output))
    job = open_job(output)
    try:
        return drive(job, executor, show)
    except HeadraceError as error:
        tell_kept(error, job.shared)
        raise
