"""Write media files and tables into tar shards, with their indices, manifest and table of origins. Without torch.

    inputs      finds tables and folders of files, and chooses the parts that columns become
    parts       rows, and groups of files, become samples with keys and parts; faults are found here
    plan        lists all samples, finds duplicates, and decides order, split and shards: one range of the list a task
    packing     a task: writes its range of the list into tars and indexes
    job         `prepare_shards` and `plan_shards`; at the end origins, manifest, ledger and `.nv-meta`

All that decides the bytes of a shard is in the plan, so workers on any host may write shards in any order, and a shard
that is complete need not be written again.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
