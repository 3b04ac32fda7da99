"""Write media files and tables into tar shards, with their indices, manifest and table of origins. Without torch.

    inputs      finds tables and folders of files, chooses the parts that columns become, and cuts the work into tasks
    survey      in workers: reads rows or groups of files; finds keys, names and sizes of parts, and faults. Values of
                columns go to a spool, so that every part is a range of some file
    planning    gives all samples their numbers, finds duplicates, and decides the order and the shards
    filling     in workers: copies the parts of a shard into its tar and index
    run         `prepare_shards`: all of this, continued after any number of interruptions; `plan_shards`
    job         the same, done by processes on any hosts
    finishing   manifest, ledger and `.nv-meta`

The contents of each shard are decided by sizes alone, before any shard is written. So workers can write whole shards in
any order, and a shard that is complete need not be written again.
"""

from __future__ import annotations

from headrace.preparing.shards.estimate import ShardEstimate, estimate_shards
from headrace.preparing.shards.messages import ShardProgress
from headrace.preparing.shards.options import PartSpec, ShardOptions, ShardOutput, ShardSource
from headrace.preparing.shards.run import plan_shards, prepare_shards

__all__ = [
    "PartSpec",
    "ShardEstimate",
    "ShardOptions",
    "ShardOutput",
    "ShardProgress",
    "ShardSource",
    "estimate_shards",
    "plan_shards",
    "prepare_shards",
]
