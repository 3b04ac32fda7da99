"""What a cache of blocks does in a run, since the plan knows when each block comes: pure functions of integers.

    ranges of files -- FileBlocks --> blocks -- Accesses --> step, node, block
                                                   |
                                                   +-- simulate --> hits of plan, pin, LRU and FIFO
                                                   +-- forecast --> GETs, bytes, hit rates, with their errors
    samples of a step -- dealing --> the nodes whose caches hold their blocks

A *block* is a part of a file, of equal size except at the end of the file; it is fetched and kept as a whole. An
*access* is a block that a node reads in a step, for one sample or for many.

May import: plan, errors.
"""

from headrace.plan.caching.blocks import Accesses, FileBlocks, Touched, next_uses
from headrace.plan.caching.forecast import CacheForecast, EpochForecast, forecast, hashed, sampled
from headrace.plan.caching.policies import POLICIES, CacheOutcome, Policy, simulate

__all__ = [
    "POLICIES",
    "Accesses",
    "CacheForecast",
    "CacheOutcome",
    "EpochForecast",
    "FileBlocks",
    "Policy",
    "Touched",
    "forecast",
    "hashed",
    "next_uses",
    "sampled",
    "simulate",
]
