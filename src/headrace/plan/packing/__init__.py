"""Which documents share a pack: plans over lengths alone, made in seconds for 10^8 documents.

    lengths --> pieces (what an over-long document becomes) --> strategy --> PackPlan: pack -> its pieces, in order
                    |
                    +--> PackingLedger: every token of every document, in packs or by reason

A strategy sees sizes only. ``best_fit`` works on the histogram of the lengths, so that its cost lies in the number of
distinct lengths; the assignment of documents to the places so found is one counting sort and one scatter.

May import: plan, errors.
"""

from headrace.plan.packing.best_fit import Placement, place
from headrace.plan.packing.lengths import CHUNK, ArrayLengths, Lengths
from headrace.plan.packing.options import MAX_DOCUMENTS, OverLong, Packing, Strategy
from headrace.plan.packing.pack_plan import PLAN_VERSION, PackingLedger, PackItems, PackPlan, PackPlanMeta
from headrace.plan.packing.planner import plan_packs

__all__ = [
    "CHUNK",
    "MAX_DOCUMENTS",
    "PLAN_VERSION",
    "ArrayLengths",
    "Lengths",
    "OverLong",
    "PackItems",
    "PackPlan",
    "PackPlanMeta",
    "Packing",
    "PackingLedger",
    "Placement",
    "Strategy",
    "place",
    "plan_packs",
]
