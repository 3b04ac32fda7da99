"""The jobs of this room, which processes on any hosts may do; see `headrace.engine`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from headrace.engine import job
from headrace.io import check_local
from headrace.preparing.output_folder import WORK_NAME
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
