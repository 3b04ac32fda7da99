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

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.plan.arithmetic import apportion, exact_weights, rounded
    from headrace.plan.balance import Assignment, balanced, costs_of, step_order, unbalanced
    from headrace.plan.blend import BlendTree, counts_until, linear_ramp, quantised
    from headrace.plan.bucketing import Bucketing, bucketed
    from headrace.plan.cursor import BalancedStep, Cursor, StepPart
    from headrace.plan.keys import IntArray, KeyArray, derive_array
    from headrace.plan.nodes import (
        Branch,
        ConcatNode,
        Declared,
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
    from headrace.plan.order import Order, Shards
    from headrace.plan.permutation import permute, unpermute
    from headrace.plan.quality import OrderQuality, order_quality
    from headrace.plan.recipe import ORDER_FORMAT, RunRecipe, order_format
    from headrace.plan.schedule import BatchSchedule
    from headrace.plan.slots import Draw, MicroBatches, Share, draw_of, micro_batches
    from headrace.plan.subset import SubsetRange
    from headrace.plan.tree import Lookup, Plan, SampleTimes

_HOMES = homes(
    {
        "headrace.plan.arithmetic": "apportion exact_weights rounded",
        "headrace.plan.balance": "Assignment balanced costs_of step_order unbalanced",
        "headrace.plan.blend": "BlendTree counts_until linear_ramp quantised",
        "headrace.plan.bucketing": "Bucketing bucketed",
        "headrace.plan.cursor": "BalancedStep Cursor StepPart",
        "headrace.plan.keys": "IntArray KeyArray derive_array",
        "headrace.plan.nodes": "Branch ConcatNode Declared Inner Leaf LimitNode "
        "Node RepeatNode Schedule leaf_counts leaves node_recipe",
        "headrace.plan.order": "Order Shards",
        "headrace.plan.permutation": "permute unpermute",
        "headrace.plan.quality": "OrderQuality order_quality",
        "headrace.plan.recipe": "ORDER_FORMAT RunRecipe order_format",
        "headrace.plan.schedule": "BatchSchedule",
        "headrace.plan.slots": "Draw MicroBatches Share draw_of micro_batches",
        "headrace.plan.subset": "SubsetRange",
        "headrace.plan.tree": "Lookup Plan SampleTimes",
    }
)

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
    "Declared",
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
