"""Where every sample of a run comes from, computed with int64 arithmetic: no I/O, no state, no torch.

    step N, rank r, micro-step j
       |  BatchSchedule, Share     the slots [b, b + m) of the micro-batch
       v
    slot
       |  Draw                     in a blend, slots are permuted within the step
       v
    position
       |  Plan: tree of nodes      (source, rank within the source)
       |  Order                    (source, epoch, sample index); a permutation in each epoch
       v
    sample

All of these steps can be undone, so that the plan also answers at which positions a sample is seen.

    RunRecipe   everything that decides the order of samples, with a hash for each part
    Cursor      how far a run has come, which is its whole state

A *piece* of a `BatchSchedule` is a stretch of steps with one global batch size; a piece of a document, in
`plan.packing`, is the part of a split document that lies in one pack.

May import: errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.plan.arithmetic import apportion, exact_weights, rounded
    from headrace.plan.balance import Assignment, StepPart, balanced, costs_of, step_order, unbalanced
    from headrace.plan.blend import BlendTree, counts_until, linear_ramp, quantised
    from headrace.plan.bucketing import Bucketing, bucketed
    from headrace.plan.cursor import BalancedStep, Cursor
    from headrace.plan.keys import IntArray, KeyArray, derive_array
    from headrace.plan.nodes import (
        Branch,
        ConcatNode,
        Inner,
        Leaf,
        LimitNode,
        Node,
        RepeatNode,
        Schedule,
        leaf_counts,
        leaves,
        node_recipe,
    )
    from headrace.plan.order import Order
    from headrace.plan.permutation import permute, unpermute
    from headrace.plan.quality import OrderQuality, order_quality
    from headrace.plan.recipe import ORDER_FORMAT, RunRecipe, order_format
    from headrace.plan.schedule import BatchSchedule
    from headrace.plan.shards import Shards
    from headrace.plan.slots import Draw, draw_of
    from headrace.plan.split import MicroBatches, Share, micro_batches
    from headrace.plan.subset import SubsetRange
    from headrace.plan.tree import Lookup, Plan, SampleTimes

_HOMES = {
    "BatchSchedule": "headrace.plan.schedule",
    "BlendTree": "headrace.plan.blend",
    "Branch": "headrace.plan.nodes",
    "Bucketing": "headrace.plan.bucketing",
    "ConcatNode": "headrace.plan.nodes",
    "Cursor": "headrace.plan.cursor",
    "Assignment": "headrace.plan.balance",
    "BalancedStep": "headrace.plan.cursor",
    "Draw": "headrace.plan.slots",
    "Inner": "headrace.plan.nodes",
    "IntArray": "headrace.plan.keys",
    "KeyArray": "headrace.plan.keys",
    "Leaf": "headrace.plan.nodes",
    "StepPart": "headrace.plan.balance",
    "LimitNode": "headrace.plan.nodes",
    "Lookup": "headrace.plan.tree",
    "MicroBatches": "headrace.plan.split",
    "Node": "headrace.plan.nodes",
    "ORDER_FORMAT": "headrace.plan.recipe",
    "Order": "headrace.plan.order",
    "OrderQuality": "headrace.plan.quality",
    "Plan": "headrace.plan.tree",
    "RunRecipe": "headrace.plan.recipe",
    "RepeatNode": "headrace.plan.nodes",
    "Schedule": "headrace.plan.nodes",
    "SampleTimes": "headrace.plan.tree",
    "Shards": "headrace.plan.shards",
    "Share": "headrace.plan.split",
    "SubsetRange": "headrace.plan.subset",
    "apportion": "headrace.plan.arithmetic",
    "balanced": "headrace.plan.balance",
    "bucketed": "headrace.plan.bucketing",
    "costs_of": "headrace.plan.balance",
    "counts_until": "headrace.plan.blend",
    "derive_array": "headrace.plan.keys",
    "draw_of": "headrace.plan.slots",
    "exact_weights": "headrace.plan.arithmetic",
    "leaf_counts": "headrace.plan.nodes",
    "leaves": "headrace.plan.nodes",
    "linear_ramp": "headrace.plan.blend",
    "micro_batches": "headrace.plan.split",
    "node_recipe": "headrace.plan.nodes",
    "order_format": "headrace.plan.recipe",
    "order_quality": "headrace.plan.quality",
    "permute": "headrace.plan.permutation",
    "quantised": "headrace.plan.blend",
    "rounded": "headrace.plan.arithmetic",
    "step_order": "headrace.plan.balance",
    "unbalanced": "headrace.plan.balance",
    "unpermute": "headrace.plan.permutation",
}

__all__ = [
    "ORDER_FORMAT",
    "Assignment",
    "BalancedStep",
    "BatchSchedule",
    "BlendTree",
    "Branch",
    "Bucketing",
    "ConcatNode",
    "Cursor",
    "Draw",
    "Inner",
    "IntArray",
    "KeyArray",
    "Leaf",
    "LimitNode",
    "Lookup",
    "MicroBatches",
    "Node",
    "Order",
    "OrderQuality",
    "Plan",
    "RepeatNode",
    "RunRecipe",
    "SampleTimes",
    "Schedule",
    "Shards",
    "Share",
    "StepPart",
    "SubsetRange",
    "apportion",
    "balanced",
    "bucketed",
    "costs_of",
    "counts_until",
    "derive_array",
    "draw_of",
    "exact_weights",
    "leaf_counts",
    "leaves",
    "linear_ramp",
    "micro_batches",
    "node_recipe",
    "order_format",
    "order_quality",
    "permute",
    "quantised",
    "rounded",
    "step_order",
    "unbalanced",
    "unpermute",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
