from headrace.datasets.measuring.chunk import (
    FaultCount as FaultCount,
    GroupFacts as GroupFacts,
    MeasuredFacts as MeasuredFacts,
    Summary as Summary,
)
from headrace.datasets.measuring.running import measure as measure
