"""Write media files and tables into tar shards, with their indices, manifest and table of origins. Without torch.

    inputs      finds tables and folders of files, and chooses the parts that columns become
    parts       rows, and groups of files, become samples with keys and parts; faults are found here
    plan        lists all samples, finds duplicates, and decides order, split and shards: one range of the list a task
    packing     a task: writes its range of the list into tars and indexes
    job         the kind of work: tasks, and what is done at the end
    finishing   origins, manifest, ledger and `.nv-meta`
    run         `prepare_shards` and `plan_shards`

All that decides the bytes of a shard is in the plan, so workers on any host may write shards in any order, and a shard
that is complete need not be written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.preparing.shards.estimate import ShardEstimate, estimate_shards
    from headrace.preparing.shards.options import PartSpec, ShardOptions, ShardOutput, ShardSource
    from headrace.preparing.shards.run import plan_shards, prepare_shards

_HOMES = {
    "PartSpec": "headrace.preparing.shards.options",
    "ShardEstimate": "headrace.preparing.shards.estimate",
    "ShardOptions": "headrace.preparing.shards.options",
    "ShardOutput": "headrace.preparing.shards.options",
    "ShardSource": "headrace.preparing.shards.options",
    "estimate_shards": "headrace.preparing.shards.estimate",
    "plan_shards": "headrace.preparing.shards.run",
    "prepare_shards": "headrace.preparing.shards.run",
}

__all__ = [
    "PartSpec",
    "ShardEstimate",
    "ShardOptions",
    "ShardOutput",
    "ShardSource",
    "estimate_shards",
    "plan_shards",
    "prepare_shards",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
