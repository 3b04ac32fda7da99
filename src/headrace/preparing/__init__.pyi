from headrace.preparing.api import Estimate as Estimate, estimate as estimate, plan as plan, prepare as prepare
from headrace.preparing.energon import (
    EnergonOptions as EnergonOptions,
    plan_energon as plan_energon,
    prepare_energon as prepare_energon,
)
from headrace.preparing.filters import FilterSpec as FilterSpec
from headrace.preparing.options import (
    ErrorOptions as ErrorOptions,
    OutputOptions as OutputOptions,
    PrepareOptions as PrepareOptions,
    RecordOptions as RecordOptions,
    TokenOptions as TokenOptions,
)
from headrace.preparing.recipes import read_recipe as read_recipe
from headrace.preparing.shards import (
    ShardOptions as ShardOptions,
    estimate_shards as estimate_shards,
    plan_shards as plan_shards,
    prepare_shards as prepare_shards,
)
