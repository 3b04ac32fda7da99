"""The jobs of this room, which processes on any hosts may do; see `headrace.engine`."""

from __future__ import annotations

import os
from typing import Final

from headrace.engine import job
from headrace.io import check_local
from headrace.preparing.output_folder import WORK_NAME

KINDS: Final = {
    "shards": "headrace.preparing.shards.job:ShardJob",
    "text": "headrace.preparing.text_job:TextJob",
}


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
