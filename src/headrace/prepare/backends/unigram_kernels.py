"""The loops of Unigram: its pieces as a tree of bytes, and the best pieces for each word. Written for numba.

The tree is one table of edges, open addressing: an entry is ``(node << 8 | byte) << 24 | child``, and 0 is none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

MAX_NODES = 1 << 24


def tree_kernel(pieces: NDArray[np.uint8], ends: IntArray, edges: IntArray, leaves: NDArray[np.int32]) -> int:
    """Fill in the tree of sorted pieces, of which ``ends`` says where each ends; returns how many nodes it has.

    ``edges``: a power of two of zeros; none, only to count. ``leaves``: (nodes,) becomes the last piece ending there.
    """
    path = np.zeros(len(pieces) + 1, np.int64)
    nodes = 1
    last = begin = 0
    for number in range(len(ends)):
        size = ends[number] - begin
        same = 0
        while same < size and last + same < begin and pieces[last + same] == pieces[begin + same]:
            same += 1
        for depth in range(same, size):
            path[depth + 1] = nodes
            if len(edges):
                key = path[depth] << 8 | np.int64(pieces[begin + depth])
                slot = (key * 0x9E3779B1 >> 12) & (len(edges) - 1)
                while edges[slot] != 0:
                    slot = (slot + 1) & (len(edges) - 1)
                edges[slot] = key << 24 | nodes
            nodes += 1
        if len(edges):
            leaves[path[size]] = number
        last, begin = begin, ends[number]
    return nodes


def search_kernel(
    text: NDArray[np.uint8],
    ends: IntArray,
    fixed: IntArray,
    edges: IntArray,
    leaf_ids: IntArray,
    leaf_scores: NDArray[np.float64],
    unknown: int,
    unknown_score: float,
    byte_ids: IntArray,
    splits: bool,
    ids: NDArray[np.uint32],
    counts: IntArray,
) -> int:
    """The ids of stretches of UTF-8 in a row, with spaces as they are; returns how many ``ids`` were written.

    ``ends`` and ``fixed``: (stretches,) where each ends; the id that it is, or -1 where it is searched. ``counts``
    becomes the ids of each. A word begins at each space where text ``splits``; ``byte_ids``: (256,), or none.

    Sums are taken in the order of the library, so that equal scores and roundings decide as they do there.
    """
    best = np.empty(256, np.float64)
    starts = np.empty(256, np.int64)
    tokens = np.empty(256, np.int64)
    after = np.empty(256, np.int64)
    mask = len(edges) - 1
    total = begin = 0
    for stretch in range(len(ends)):
        before = total
        if fixed[stretch] >= 0:
            ids[total] = fixed[stretch]
            total += 1
        while begin < ends[stretch]:
            end = ends[stretch]
            if splits:
                end = begin + 1
                while end < ends[stretch] and text[end] != 0x20:
                    end += 1
            size = end - begin
            if size >= len(best):
                best = np.empty(2 * size, np.float64)
                starts = np.empty(2 * size, np.int64)
                tokens = np.empty(2 * size, np.int64)
                after = np.empty(2 * size, np.int64)
            best[0] = 0.0
            for at in range(1, size + 1):
                best[at] = -1e300
            at = 0
            while at < size:
                lead = text[begin + at]
                width = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
                has_single = False
                node = 0
                to = at
                while to < size:
                    key = node << 8 | np.int64(text[begin + to])
                    slot = (key * 0x9E3779B1 >> 12) & mask
                    while edges[slot] != 0 and edges[slot] >> 24 != key:
                        slot = (slot + 1) & mask
                    if edges[slot] == 0:
                        break
                    node = edges[slot] & 0xFFFFFF
                    to += 1
                    if leaf_ids[node] >= 0:
                        score = leaf_scores[node] + best[at]
                        if score > best[to]:
                            best[to], starts[to], tokens[to] = score, at, leaf_ids[node]
                        has_single |= to - at == width
                if not has_single:
                    score = unknown_score + best[at]
                    if score > best[at + width]:
                        best[at + width], starts[at + width], tokens[at + width] = score, at, unknown
                at += width
            at = size
            while at > 0:
                after[starts[at]] = at
                at = starts[at]
            while at < size:
                to = after[at]
                token = tokens[to]
                if token == unknown:
                    # Unknown characters in a row are one token, or the bytes of all. The text "<unk>" is a piece.
                    lead = text[begin + at]
                    is_piece = to - at > 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
                    while to < size and tokens[after[to]] == unknown:
                        to = after[to]
                        is_piece = False
                    if len(byte_ids) and not is_piece:
                        for place in range(at, to):
                            ids[total] = byte_ids[text[begin + place]]
                            total += 1
                        at = to
                        continue
                ids[total] = token
                total += 1
                at = to
            begin = end
        counts[stretch] = total - before
    return total
