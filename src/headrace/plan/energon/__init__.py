"""Energon's own order, sample for sample: for runs that were begun there, and to compare with.

    EnergonSource (shards, subset, weight or repetitions) -+
    EnergonTopology (ranks, workers, seed offset) ---------+--> slices of each worker --> open slices, blend, buffer
    EnergonMixing (slices, open at once, buffer) ----------+         of each (rank, worker) by itself -> samples

The order lives in generators: which sample comes depends on all draws before it. It is bound to the number of ranks and
of workers, which decide who has which samples for the whole run; ``headrace.plan.Order(kind="shards")`` is bound to
neither. Nothing here reads a file, and torch is not needed: its generator is replayed in NumPy.

Matched: megatron-energon 7.4.1. May import: errors, and of the plan its arrays.
"""

from headrace.plan.energon.order import EnergonMixing, EnergonOrder, EnergonSample
from headrace.plan.energon.sources import EnergonSource, EnergonTopology, bit_reversal, slice_offsets, worker_bounds
from headrace.plan.energon.worker_rng import WorkerRng, seed_from_args, worker_seed

__all__ = [
    "EnergonMixing",
    "EnergonOrder",
    "EnergonSample",
    "EnergonSource",
    "EnergonTopology",
    "WorkerRng",
    "bit_reversal",
    "seed_from_args",
    "slice_offsets",
    "worker_bounds",
    "worker_seed",
]
