"""Sources whose facts were measured once: filters, generators, groups and packs, all in closed form.

    position ---- Plan ----> unit ---- Grouping, Packing ----> items ---- Facts ----> samples and outputs of the dataset
                                                                          filter: select over a bitmap
                                                                          generator: prefix sums, in unary

The number of units is that of the leaf, the same in every epoch, so the state of a run stays a position.

May import: plan, errors.
"""

from headrace.plan.measured.grouping import Grouping, Groups, Remainder
from headrace.plan.measured.measured import Facts, Measured, Members
from headrace.plan.measured.outputs import Bits, Outputs

__all__ = ["Bits", "Facts", "Grouping", "Groups", "Measured", "Members", "Outputs", "Remainder"]
