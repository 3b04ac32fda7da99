from headrace.plan.measured.grouping import Grouping as Grouping, Groups as Groups, Remainder as Remainder
from headrace.plan.measured.measured import (
    Facts as Facts,
    Measured as Measured,
    Members as Members,
    Outputs as Outputs,
)
