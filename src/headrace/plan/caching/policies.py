"""What a cache of blocks holds under each policy: exact simulations of one sequence of accesses.

plan   a block that comes again is kept if its next use is before that of the last one kept (Belady, IBM Systems Journal
       1966, with the choice not to keep a block at all): no other policy has more hits
pin    the first blocks that come are kept for ever; no others are
lru    every block is kept; the one that was used longest ago goes
fifo   every block is kept; the one that was fetched longest ago goes
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.caching.blocks import next_uses
from headrace.plan.keys import IntArray

Policy = Literal["plan", "pin", "lru", "fifo"]
POLICIES: tuple[Policy, ...] = ("plan", "pin", "lru", "fifo")

BoolArray = NDArray[np.bool_]


class CacheOutcome(NamedTuple):
    """What happened at each access, both (n,) bool: was the block in the cache, and was it put there, whole."""

    is_hit: BoolArray
    is_kept: BoolArray


def simulate(blocks: IntArray, capacity: int, policy: Policy) -> CacheOutcome:
    """Return what happens when blocks are read in an order, (n,) int64, through a cache of ``capacity`` blocks.

    About 1 us an access for ``plan``, less for the others.

    Raises:
        ConfigError: the policy is unknown, or the capacity is below 0.

    Example:
        >>> blocks = np.array([1, 2, 3, 1, 2, 3])
        >>> {one: int(simulate(blocks, 2, one).is_hit.sum()) for one in ("plan", "pin", "lru", "fifo")}
        {'plan': 2, 'pin': 2, 'lru': 0, 'fifo': 0}
    """
    if policy not in POLICIES or capacity < 0:
        raise ConfigError(
            f"policy is {policy!r} with room for {capacity} blocks; policies are {', '.join(POLICIES)}, and the room is"
            " at least 0"
        )
    if not capacity:
        nothing = np.zeros(len(blocks), dtype=np.bool_)
        return CacheOutcome(nothing, nothing)
    return {"plan": _plan, "pin": _pin, "lru": _lru, "fifo": _fifo}[policy](blocks, capacity)


def _plan(blocks: IntArray, capacity: int) -> CacheOutcome:
    last = len(blocks)
    is_hit, is_kept = np.zeros(last, dtype=np.bool_), np.zeros(last, dtype=np.bool_)
    # Block -> its next use, for those that are kept. The heap holds the same, with entries that are out of date.
    kept: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    for at, (block, later) in enumerate(zip(blocks.tolist(), next_uses(blocks).tolist(), strict=True)):
        if block in kept:
            is_hit[at] = True
            if later == last:
                del kept[block]
                continue
        elif later == last:
            continue
        elif len(kept) == capacity:
            while kept.get(heap[0][1]) != -heap[0][0]:
                heappop(heap)
            if -heap[0][0] < later:
                continue
            del kept[heappop(heap)[1]]
            is_kept[at] = True
        else:
            is_kept[at] = True
        kept[block] = later
        heappush(heap, (-later, block))
        if len(heap) > 4 * capacity + 1024:
            heap = [(-use, one) for one, use in kept.items()]
            heapify(heap)
    return CacheOutcome(is_hit, is_kept)


def _pin(blocks: IntArray, capacity: int) -> CacheOutcome:
    _, firsts, numbers = np.unique(blocks, return_index=True, return_inverse=True)
    is_pinned = np.zeros(len(firsts), dtype=np.bool_)
    is_pinned[np.argsort(firsts, kind="stable")[:capacity]] = True
    is_first = np.zeros(len(blocks), dtype=np.bool_)
    is_first[firsts] = True
    mine = is_pinned[numbers.reshape(-1)]
    return CacheOutcome(mine & ~is_first, mine & is_first)


def _lru(blocks: IntArray, capacity: int) -> CacheOutcome:
    is_hit = np.zeros(len(blocks), dtype=np.bool_)
    kept: dict[int, int] = {}
    # Every use in turn; one that is not the last of its block is out of date.
    order: deque[tuple[int, int]] = deque()
    for at, block in enumerate(blocks.tolist()):
        if block in kept:
            is_hit[at] = True
        elif len(kept) == capacity:
            while kept.get(order[0][0]) != order[0][1]:
                order.popleft()
            del kept[order.popleft()[0]]
        kept[block] = at
        order.append((block, at))
    return CacheOutcome(is_hit, ~is_hit)


def _fifo(blocks: IntArray, capacity: int) -> CacheOutcome:
    is_hit = np.zeros(len(blocks), dtype=np.bool_)
    kept: set[int] = set()
    order: deque[int] = deque()
    for at, block in enumerate(blocks.tolist()):
        if block in kept:
            is_hit[at] = True
            continue
        if len(kept) == capacity:
            kept.remove(order.popleft())
        kept.add(block)
        order.append(block)
    return CacheOutcome(is_hit, ~is_hit)
