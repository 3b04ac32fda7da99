from headrace.plan.arithmetic import apportion as apportion, exact_weights as exact_weights, rounded as rounded
from headrace.plan.balance import (
    Assignment as Assignment,
    balanced as balanced,
    costs_of as costs_of,
    step_order as step_order,
    unbalanced as unbalanced,
)
from headrace.plan.blend import (
    BlendTree as BlendTree,
    counts_until as counts_until,
    linear_ramp as linear_ramp,
    quantised as quantised,
)
from headrace.plan.bucketing import Bucketing as Bucketing, bucketed as bucketed
from headrace.plan.chaptered.chapters import Plan as Plan
from headrace.plan.cursor import BalancedStep as BalancedStep, Cursor as Cursor, StepPart as StepPart
from headrace.plan.keys import IntArray as IntArray, KeyArray as KeyArray, derive_array as derive_array
from headrace.plan.nodes import (
    Branch as Branch,
    ConcatNode as ConcatNode,
    Declared as Declared,
    Inner as Inner,
    Leaf as Leaf,
    LimitNode as LimitNode,
    Node as Node,
    RepeatNode as RepeatNode,
    Schedule as Schedule,
    leaf_counts as leaf_counts,
    leaves as leaves,
    node_recipe as node_recipe,
)
from headrace.plan.order import Order as Order, OrderKind as OrderKind, Shards as Shards
from headrace.plan.permutation import permute as permute, unpermute as unpermute
from headrace.plan.quality import OrderQuality as OrderQuality, order_quality as order_quality
from headrace.plan.recipe import ORDER_FORMAT as ORDER_FORMAT, RunRecipe as RunRecipe, order_format as order_format
from headrace.plan.schedule import BatchSchedule as BatchSchedule
from headrace.plan.slots import (
    Draw as Draw,
    MicroBatches as MicroBatches,
    Share as Share,
    draw_of as draw_of,
    micro_batches as micro_batches,
)
from headrace.plan.subset import SubsetRange as SubsetRange
from headrace.plan.tree import Lookup as Lookup, SampleTimes as SampleTimes
