"""Energon's own order, sample for sample: for runs that were begun with Energon, and for comparison.

    EnergonSource (shards, subset, weight or repetitions) -+
    EnergonTopology (ranks, workers, seed offset) ---------+--> slices of each worker --> open slices, blend, buffer
    EnergonMixing (slices, open at once, buffer) ----------+         of each (rank, worker) by itself -> samples

The order comes from random generators: each sample depends on all draws before it. It also depends on the numbers of
ranks and workers, which decide for the whole run which of them reads which samples;
``headrace.plan.Order(kind="shards")`` depends on neither. Nothing here reads a file. Torch is not needed, since its
generator is replayed in NumPy.

A *piece* is the part of a worker's share that lies in one shard; a *slice* is a piece, or a part of a long one, that is
read in one go.

Matches megatron-energon 7.4.1. May import: errors, and from the plan its arrays.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
