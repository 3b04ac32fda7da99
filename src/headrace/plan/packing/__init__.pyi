from headrace.plan.packing.fitting import Placement as Placement, place as place
from headrace.plan.packing.lengths import (
    CHUNK as CHUNK,
    ArrayLengths as ArrayLengths,
    Lengths as Lengths,
    own_lengths as own_lengths,
)
from headrace.plan.packing.options import (
    MAX_DOCUMENTS as MAX_DOCUMENTS,
    OverLong as OverLong,
    Packing as Packing,
    Strategy as Strategy,
)
from headrace.plan.packing.pack_plan import (
    PLAN_VERSION as PLAN_VERSION,
    PackingLedger as PackingLedger,
    PackItems as PackItems,
    PackPlan as PackPlan,
    PackPlanMeta as PackPlanMeta,
)
from headrace.plan.packing.planner import plan_packs as plan_packs
