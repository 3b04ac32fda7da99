"""Which documents share a pack: plans over the lengths alone, made in seconds for 10^8 documents.

    lengths --> pieces --> strategy --> PackPlan: pack -> its pieces, in order
                    |
                    +--> PackingLedger: every token of every document, in packs or lost for a reason

A *piece* is the part of a document that goes into one pack as one segment. Most documents are a single piece. If
over-long documents are split, a document becomes *full pieces* of ``seq_len`` tokens and at most one shorter piece; if
they are truncated, the piece is what is left of the document. The piece that is not a full one is called the document's
*own piece*. A *unit* is ``segment_multiple`` tokens, and the size of a piece is counted in units.

A strategy sees only sizes. ``best_fit`` works on the histogram of the lengths, so that its cost depends on the number
of distinct lengths. Documents are then assigned to places in the packs with one counting sort and one scatter.

May import: plan, errors.
"""

from headrace.plan.packing.fitting import Placement, place
from headrace.plan.packing.lengths import CHUNK, ArrayLengths, Lengths, own_lengths
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
    "own_lengths",
    "place",
    "plan_packs",
]
