"""Where every sample of a run comes from, as pure integer arithmetic on int64: no I/O, no state, no torch.

    position ---- BatchSchedule, Share ----> step N, rank r, micro-step j take the positions [b, b + m)
       |
       +-- Plan: BlendTree (source, rank) -> epoch -> Order (permutation) --> (source, epoch, sample index)

    Recipe   what decides all this, hashed by part          Cursor   how far a run has come: the whole state

May import: errors.
"""

from headrace.plan.arithmetic import apportion, exact_weights, rounded
from headrace.plan.blend import BlendTree, counts_until, quantised
from headrace.plan.bucketing import Bucketing, bucketed
from headrace.plan.cursor import Cursor
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.order import Order
from headrace.plan.permutation import permute, unpermute
from headrace.plan.recipe import ORDER_FORMAT, Recipe
from headrace.plan.schedule import BatchSchedule
from headrace.plan.split import MicroBatches, Share, micro_batches
from headrace.plan.tree import Branch, Leaf, Lookup, Node, Plan, leaves

__all__ = [
    "ORDER_FORMAT",
    "BatchSchedule",
    "BlendTree",
    "Branch",
    "Bucketing",
    "Cursor",
    "IntArray",
    "KeyArray",
    "Leaf",
    "Lookup",
    "MicroBatches",
    "Node",
    "Order",
    "Plan",
    "Recipe",
    "Share",
    "apportion",
    "bucketed",
    "counts_until",
    "derive_array",
    "exact_weights",
    "leaves",
    "micro_batches",
    "permute",
    "quantised",
    "rounded",
    "unpermute",
]
