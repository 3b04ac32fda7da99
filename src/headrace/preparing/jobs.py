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

KINDS: Final = {"text": "headrace.preparing.text_job:TextJob"}


def open_job(output: str | os.PathLike[str], *, checks_software: bool = True) -> job.Job:
    """Open the job that was planned in a folder.

    Args:
        output: the folder.
        checks_software: whether this host must have the software of the plan, without which it may do no task.

    Raises:
        OutputError: nothing is planned there, or the plan cannot be read.
        ConfigError: the software of this host differs from that of the plan.
    """
    check_local(output)
    return job.open_job(output, WORK_NAME, KINDS, checks_software=checks_software)


def finish_job(output: str | os.PathLike[str], executor: Executor, show: Show) -> Any:
    """Take the job that was planned in a folder to its end; see `headrace.engine.executors.drive`.

    If the job is complete already, this returns its manifest, and removes what a kill may have left of its work.

    Raises:
        OutputError: nothing was planned in this folder.
        Exception: see `drive`.
    """
    check_local(output)
    if (Path(output) / WORK_NAME / job.PLAN_NAME).exists() or not (Path(output) / MANIFEST_NAME).exists():
        return drive(open_job(output), executor, show)
    with OutputFolder(output, overwrite=False, restart=False):
        show.notice(f"{output}: the output is complete already")
    return load_manifest(output)
