"""First-fit and next-fit: packing in the order of arrival.

First-fit puts each piece into the first pack that has room for it. Next-fit fills one pack at a time and begins a new
one when the next document does not fit.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.packing.lengths import CHUNK


def first_fit(sizes: NDArray[np.integer[Any]], capacity: int) -> tuple[NDArray[np.uint32], IntArray]:
    """Return the pack of each piece, (num_pieces,) uint32, and the room left in each pack, (num_packs,) int64.

    A binary tree over the packs holds the most room below each node. The first pack with room is found by walking down
    the tree: O(log packs) a piece, 1 to 3 us. The tree doubles when it is full.
    """
    width = 1024
    # Packs that are not open yet have all their room, so the next new pack is found like any other.
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
    """The tree over twice as many packs: each level is twice as wide, and its new half has all its room."""
    wider = array("q", [capacity]) * (4 * width)
    level = 1
    while level <= width:
        wider[2 * level : 3 * level] = most[level : 2 * level]
        level *= 2
    return wider


_CHUNK = 16_384
"""Documents in a chunk: few enough that their sums stay in the CPU's cache, and that few are processed twice."""


def next_fit(lengths: IntArray, seq_len: int) -> IntArray:
    """Return (num_packs + 1,) int64: the first document of each pack, and the number of documents at the end.

    ``lengths`` is (n,) int64, each in [0, seq_len]. A document without tokens joins the current pack. Every pack has
    tokens: if no document has any there are no packs, and the result is ``[n]``.

    For example, documents of 3, 2, 0, 2 and 2 tokens in packs of 6 are packed as (3, 2, 0) and (2, 2), and the result
    is ``[0, 3, 5]``.

    Takes about 30 ns of CPU a document and 30 ns a pack, and the memory of the result and of one chunk of documents.

    Raises:
        ConfigError: ``seq_len`` is below 1, or a length is below 0 or above ``seq_len``; the message names the
            document.
    """
    if seq_len < 1:
        raise ConfigError(f"seq_len is at least 1, found {seq_len}")
    if not lengths.any():
        return np.array([len(lengths)], dtype=np.int64)
    firsts = [np.zeros(1, dtype=np.int64)]
    begin, size = 0, _CHUNK
    while True:
        chunk = lengths[begin : begin + size]
        after = _chain(chunk, seq_len, begin)
        firsts.append(after + begin)
        if begin + len(chunk) == len(lengths):
            break
        # The end of the chunk cuts a pack. The next chunk begins with that pack, and is longer if the pack fills it.
        begin, size = (begin + int(after[-1]), _CHUNK) if len(after) else (begin, 2 * size)
    return np.concatenate([*firsts, np.array([len(lengths)], dtype=np.int64)])


def _chain(lengths: IntArray, seq_len: int, begin: int) -> IntArray:
    """(k,) int64: where in a chunk each pack but the first begins; ``begin`` documents come before the chunk."""
    if lengths.min() < 0 or lengths.max() > seq_len:
        wrong = int(np.flatnonzero((lengths < 0) | (lengths > seq_len))[0])
        raise ConfigError(
            f"document {begin + wrong} has {lengths[wrong]:,} tokens; allowed are 0 to {seq_len:,}: split, truncate"
            " or drop longer documents, or increase seq_len"
        )
    sums = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=sums[1:])
    # For each document, the first one that does not fit into a pack beginning with it. Following these from pack to
    # pack takes one Python step a pack, and an array of the standard library is the fastest to index one by one.
    after = array("q", (np.searchsorted(sums, sums[:-1] + seq_len, side="right") - 1).tobytes())
    chain = []
    at = after[0]
    while at < len(lengths):
        chain.append(at)
        at = after[at]
    return np.array(chain, dtype=np.int64)
