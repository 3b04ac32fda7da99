"""First-fit in the order of arrival: each piece into the first pack that has room for it."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray
from headrace.plan.packing.lengths import CHUNK


def first_fit(sizes: NDArray[np.integer[Any]], capacity: int) -> tuple[NDArray[np.uint32], IntArray]:
    """The pack of each piece, (pieces,) uint32, and the room that is left in each pack, (packs,) int64.

    A tree over the packs holds the most room below each node; the first pack with room is found walking down it:
    O(log packs) a piece, 1 to 3 us. The tree doubles when it is full.
    """
    width = 1024
    # Packs that are not open yet have all their room, so the first of them is found like any other.
    most = array("q", [capacity]) * (2 * width)
    num_packs = 0
    chosen = array("I")
    for first in range(0, len(sizes), CHUNK):
        for size in sizes[first : first + CHUNK].tolist():
            if most[1] < size:
                most = _doubled(most, width, capacity)
                width *= 2
            node = 1
            while node < width:
                node *= 2
                if most[node] < size:
                    node += 1
            pack = node - width
            if pack == num_packs:
                num_packs += 1
            chosen.append(pack)
            most[node] -= size
            while node > 1:
                node //= 2
                left, right = most[2 * node], most[2 * node + 1]
                larger = left if left > right else right
                if most[node] == larger:
                    break
                most[node] = larger
    return np.frombuffer(chosen, dtype=np.uint32), np.array(most[width : width + num_packs], dtype=np.int64)


def _doubled(most: array[int], width: int, capacity: int) -> array[int]:
    """The tree over twice as many packs: each level twice as wide, the new half with all room."""
    wider = array("q", [capacity]) * (4 * width)
    level = 1
    while level <= width:
        wider[2 * level : 3 * level] = most[level : 2 * level]
        level *= 2
    return wider
