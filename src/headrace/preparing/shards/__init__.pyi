from headrace.preparing.shards.estimate import ShardEstimate as ShardEstimate, estimate_shards as estimate_shards
from headrace.preparing.shards.job import plan_shards as plan_shards, prepare_shards as prepare_shards
from headrace.preparing.shards.options import (
    PartSpec as PartSpec,
    ShardOptions as ShardOptions,
    ShardOutput as ShardOutput,
    ShardSource as ShardSource,
)
