"""What a cache will do in a run: fetches, bytes and hits under each policy, exactly or from a sample of the blocks.

A run touches more blocks than can be followed one by one. So blocks are sampled by a hash of their numbers, and a cache
with room for the same part of the blocks is simulated on the accesses to them (SHARDS, Waldspurger and others, FAST
2015): whether a block is kept depends on how many others come in between, and of those the sample has its part. Other
bits of the same hash divide the sampled blocks into groups; how far the figures of the groups differ is the error of
their mean.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan.caching.blocks import Accesses, FileBlocks
from headrace.plan.caching.policies import BoolArray, Policy, simulate
from headrace.plan.keys import GOLDEN, IntArray, mix_array

NUM_GROUPS = 8
"""Groups of the sampled blocks, whose differences are the error."""

WINDOWS = 100
"""Parts of a run, of equally many steps, of which the busiest one is the peak."""

_BITS = 53


def hashed(blocks: IntArray) -> NDArray[np.uint64]:
    """Return (n,) uint64 hashes of blocks, the same on every machine."""
    return mix_array(blocks.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(GOLDEN))


def sampled(blocks: IntArray, rate: float) -> BoolArray:
    """Return (n,) bool: whether each block belongs to the sample of a rate, the part of all blocks that is followed."""
    chosen: BoolArray = (hashed(blocks) >> np.uint64(64 - _BITS)).astype(np.float64) < rate * float(1 << _BITS)
    return chosen


class EpochForecast(NamedTuple):
    """The accesses of one epoch, counted in passes through each source, and how many of them hit."""

    epoch: int
    num_accesses: float
    num_hits: float


class CacheForecast(NamedTuple):
    """What one policy does in some steps of a run, on all nodes together.

    Attributes:
        policy: the policy.
        num_accesses: how often a node reads a block in a step.
        num_hits: how many of these find the block in the cache.
        num_fetches: the GETs: whole blocks that are kept, and ranges of blocks that are not.
        fetched_bytes: the bytes that leave the store.
        used_bytes: the bytes of these accesses that samples use.
        peak_step_bytes: the bytes that leave the store in a step, in the busiest hundredth of the steps.
        epochs: the same by epoch.
        hit_rate_error: the standard error of the hit rate; 0 if every block was followed.
        fetched_bytes_error: that of the fetched bytes.
    """

    policy: Policy
    num_accesses: float
    num_hits: float
    num_fetches: float
    fetched_bytes: float
    used_bytes: float
    peak_step_bytes: float
    epochs: tuple[EpochForecast, ...]
    hit_rate_error: float
    fetched_bytes_error: float

    @property
    def hit_rate(self) -> float:
        """The part of the accesses that hit."""
        return self.num_hits / self.num_accesses if self.num_accesses else 0.0


def forecast(
    accesses: Accesses,
    table: FileBlocks,
    *,
    capacity: int,
    policy: Policy,
    first_step: int,
    num_steps: int,
    rate: float,
) -> CacheForecast:
    """Return what a policy does on some accesses, with room for ``capacity`` blocks on each node.

    Args:
        accesses: those of a run, or those to the sampled blocks.
        table: the blocks.
        capacity: how many blocks a node keeps.
        policy: the policy.
        first_step: the step where the accesses begin.
        num_steps: the number of steps.
        rate: the part of the blocks that was sampled; 1 if all were.
    """
    is_hit, is_kept = np.zeros((2, len(accesses.steps)), dtype=np.bool_)
    room = max(1, round(capacity * rate)) if capacity else 0
    order = np.argsort(accesses.nodes, kind="stable")
    borders = np.flatnonzero(np.diff(accesses.nodes[order])) + 1
    for rows in np.split(order, borders) if len(order) else ():
        is_hit[rows], is_kept[rows] = simulate(accesses.blocks[rows], room, policy)
    # A block that is kept is fetched whole, once; of any other only what is used.
    fetched = np.where(is_hit, 0, np.where(is_kept, table.sizes(accesses.blocks), accesses.used_bytes))
    groups = (hashed(accesses.blocks) & np.uint64(NUM_GROUPS - 1)).astype(np.int64)
    hits, counts, sums = (np.bincount(groups, one, NUM_GROUPS) for one in (is_hit, np.ones(len(is_hit)), fetched))
    scale = 1 / rate
    width = max(1, -(-num_steps // WINDOWS))
    windows = np.bincount((accesses.steps - first_step) // width, fetched) if len(fetched) else np.zeros(1)
    lengths = np.minimum(width, num_steps - width * np.arange(len(windows)))
    return CacheForecast(
        policy=policy,
        num_accesses=scale * len(is_hit),
        num_hits=scale * int(is_hit.sum()),
        num_fetches=scale * int((~is_hit).sum()),
        fetched_bytes=scale * int(fetched.sum()),
        used_bytes=scale * int(accesses.used_bytes.sum()),
        peak_step_bytes=scale * float((windows / np.maximum(1, lengths)).max()),
        epochs=tuple(_by_epoch(accesses.epochs, is_hit, scale)),
        hit_rate_error=_error(hits / np.maximum(1, counts)) if rate < 1 else 0.0,
        fetched_bytes_error=scale * NUM_GROUPS * _error(sums) if rate < 1 else 0.0,
    )


def _error(values: NDArray[Any]) -> float:
    """Return the standard error of the mean of some values."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _by_epoch(epochs: IntArray, is_hit: BoolArray, scale: float) -> list[EpochForecast]:
    found, rows = np.unique(epochs, return_inverse=True)
    rows = rows.reshape(-1)
    counts, hits = np.bincount(rows, minlength=len(found)), np.bincount(rows, is_hit, len(found))
    columns = zip(found.tolist(), counts.tolist(), hits.tolist(), strict=True)
    return [EpochForecast(epoch, scale * count, scale * hit) for epoch, count, hit in columns]
