"""Where every sample of a run comes from, as pure integer arithmetic on int64: no I/O, no state, no torch.

    position ---- BatchSchedule, Share ----> step N, rank r, micro-step j take the positions [b, b + m)
       |
       +-- Plan: tree of nodes (source, rank) -> epoch -> Order (permutation) --> (source, epoch, sample index)
                 and back, for where a sample is seen

    Recipe   what decides all this, hashed by part          Cursor   how far a run has come: the whole state

May import: errors.
"""

from headrace.plan.arithmetic import apportion, exact_weights, rounded
from headrace.plan.balance import Deal, balanced, costs_of, unbalanced
from headrace.plan.blend import BlendTree, counts_until, quantised
from headrace.plan.bucketing import Bucketing, bucketed
from headrace.plan.cursor import Cursor, Dealt
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.node_recipe import node_recipe
from headrace.plan.nodes import (
    Branch,
    Concat,
    Inner,
    Leaf,
    Limit,
    Node,
    Repeat,
    Schedule,
    leaf_counts,
    leaves,
)
from headrace.plan.order import Order
from headrace.plan.order_quality import OrderQuality, order_quality
from headrace.plan.permutation import permute, unpermute
from headrace.plan.recipe import ORDER_FORMAT, Recipe
from headrace.plan.schedule import BatchSchedule
from headrace.plan.shards import Shards
from headrace.plan.split import MicroBatches, Share, micro_batches
from headrace.plan.step_deal import Leg, step_order
from headrace.plan.subset import Subset
from headrace.plan.tree import Lookup, Plan, Seen
from headrace.plan.weight_ramp import linear_ramp

__all__ = [
    "ORDER_FORMAT",
    "BatchSchedule",
    "BlendTree",
    "Branch",
    "Bucketing",
    "Concat",
    "Cursor",
    "Deal",
    "Dealt",
    "Inner",
    "IntArray",
    "KeyArray",
    "Leaf",
    "Leg",
    "Limit",
    "Lookup",
    "MicroBatches",
    "Node",
    "Order",
    "OrderQuality",
    "Plan",
    "Recipe",
    "Repeat",
    "Schedule",
    "Seen",
    "Shards",
    "Share",
    "Subset",
    "apportion",
    "balanced",
    "bucketed",
    "costs_of",
    "counts_until",
    "derive_array",
    "exact_weights",
    "leaf_counts",
    "leaves",
    "linear_ramp",
    "micro_batches",
    "node_recipe",
    "order_quality",
    "permute",
    "quantised",
    "rounded",
    "step_order",
    "unbalanced",
    "unpermute",
]
