"""The kinds of work of this room, whose tasks processes on any hosts may do, see `headrace.engine`."""

from __future__ import annotations

from typing import Final

from headrace.engine.planning import KindOfWork
from headrace.engine.work_folder import WORK_NAME, inside
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KINDS: Final = {
    "text": KindOfWork("headrace.preparing.text_job:TextJob", inside(WORK_NAME)),
    "shards": KindOfWork("headrace.preparing.shards.job:ShardJob", inside(WORK_NAME)),
    "energon": KindOfWork("headrace.preparing.energon.job:EnergonJob", inside(f"{META_FOLDER}/{META_WORK_NAME}")),
}
"""The kinds of work of this room."""
