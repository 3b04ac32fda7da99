"""Media files and tables -> tar shards with their indices, manifest and table of origins. No torch.

    inputs      what the user named -> tables and folders of files; which columns become which parts
    survey      rows, or groups of files -> keys, names and sizes of parts, faults            \\
                (values of columns go to a spool, so that every part is a range of some file)  | in the workers
    planning    all samples -> numbers, duplicates, order, cuts into shards                    |
    filling     the ranges of a shard's parts -> its tar and index                            /
    run         all of it, through any number of interruptions
    finishing   manifest, ledger, `.nv-meta`

What is in which shard is decided by sizes alone, before a byte of a shard is written: so shards are written by workers
whole, in any order, and a shard that is there need not be written again.
"""

from __future__ import annotations

from headrace.prepare.shards.estimate import ShardEstimate, estimate_shards
from headrace.prepare.shards.messages import ShardProgress
from headrace.prepare.shards.options import PartSpec, ShardOptions, ShardOutput, ShardSource
from headrace.prepare.shards.run import prepare_shards

__all__ = [
    "PartSpec",
    "ShardEstimate",
    "ShardOptions",
    "ShardOutput",
    "ShardProgress",
    "ShardSource",
    "estimate_shards",
    "prepare_shards",
]
