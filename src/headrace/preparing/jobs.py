"""The jobs of this room, which processes on any hosts may do; see `headrace.engine`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from headrace.engine import job
from headrace.engine.executors import Executor, drive
from headrace.engine.job import Show
from headrace.io import check_local
from headrace.preparing.output_folder import WORK_NAME, OutputFolder
from headrace.stores import MANIFEST_NAME, load_manifest
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

WORK_NAMES: Final = (WORK_NAME, f"{META_FOLDER}/{META_WORK_NAME}")
KINDS: Final = {
    "energon": "headrace.preparing.energon.job:EnergonJob",
    "shards": "headrace.preparing.shards.job:ShardJob",
    "text": "headrace.preparing.text_job:TextJob",
}


def open_job(output: str | os.PathLike[str], *, checks_software: bool = True) -> job.Job:
    """Open the job that was planned in a folder.

    A job that makes a new output has its plan in ``.headrace-prepare``; one that makes an Energon dataset of a folder,
    in place, has it in ``.nv-meta/.headrace``. If there are plans at both places, the first is opened.

    Args:
        output: the folder.
        checks_software: whether this host must have the software of the plan, without which it may do no task.

    Raises:
        OutputError: nothing is planned there, or the plan cannot be read.
        ConfigError: the software of this host differs from that of the plan.
    """
    check_local(output)
    planned = (name for name in WORK_NAMES if Path(output, name, job.PLAN_NAME).exists())
    return job.open_job(output, next(planned, WORK_NAME), KINDS, checks_software=checks_software)


def finish_job(output: str | os.PathLike[str], executor: Executor, show: Show) -> Any:
    """Take the job that was planned in a folder to its end; see `headrace.engine.executors.drive`.

    If the job is complete already, this returns its manifest, and removes what a kill may have left of its work.

    Raises:
        OutputError: nothing was planned in this folder.
        Exception: see `drive`.
    """
    check_local(output)
    is_planned = any(Path(output, name, job.PLAN_NAME).exists() for name in WORK_NAMES)
    if is_planned or not Path(output, MANIFEST_NAME).exists():
        return drive(open_job(output), executor, show)
    with OutputFolder(output, overwrite=False, restart=False):
        show.notice(f"{output}: the output is complete already")
    return load_manifest(output)
