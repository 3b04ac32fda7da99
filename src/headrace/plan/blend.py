"""Which source a position of a blend falls to, and the how-manieth of that source it is.

The sources are the leaves of a Huffman tree of two-way splits. A node with total t gives p of every t items to its
left child, as evenly as integers can: item g goes left iff floor((g+1)p/t + 1/2) > floor(g p/t + 1/2), and the number
that went left before is floor(g p/t + 1/2) (a Beatty sequence). So source and rank within the source are found by
walking down the tree, O(log sources), from the position alone.

    shares 2 : 1        position  0  1  2  3  4  5
                        source    A  B  A  A  B  A
                        rank      0  0  1  2  1  3

How far a prefix can stray: an internal child of a Huffman tree holds at most 2/3 of its parent, so its deviation is at
most 1/2 / (1 - 2/3), and a leaf's half a sample more: below 2 samples, at every prefix, for any number of sources.
After exactly t positions the counts are exactly the shares, and the sequence repeats.

Weights that move in a straight line from one mix to another, as segments of a schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.arithmetic import Weight, apportion, exact_weights, rounded, scaled
from headrace.plan.keys import IntArray

QUANTUM = 1 << 31
"""Weights are quantised to integers of this sum."""

_MAX_TOTAL = 1 << 61


class BlendTree:
    """The Huffman tree over integer ``shares``; sources of share 0 are never chosen."""

    def __init__(self, shares: Sequence[int]) -> None:
        if sum(shares) > _MAX_TOTAL or min(shares) < 0 or sum(shares) == 0:
            raise ConfigError(f"shares must be at least 0 and sum to 1 .. 2^61, found a sum of {sum(shares)}")
        lefts: list[int] = []
        rights: list[int] = []
        left_shares: list[int] = []
        totals: list[int] = []
        # (share, age, node): sources are ~i, nodes >= 0; the age makes the order of ties the same everywhere.
        heap = [(share, i, ~i) for i, share in enumerate(shares) if share]
        heapq.heapify(heap)
        while len(heap) > 1:
            small, _, right = heapq.heappop(heap)
            large, _, left = heapq.heappop(heap)
            node = len(totals)
            lefts.append(left)
            rights.append(right)
            left_shares.append(large)
            totals.append(large + small)
            heapq.heappush(heap, (large + small, len(shares) + node, node))
        self._root = heap[0][2]
        self._children = np.array([rights, lefts], dtype=np.int64)
        self._left_shares = np.array(left_shares, dtype=np.int64)
        self._totals = np.array(totals, dtype=np.int64)

        self._num_sources = len(shares)

    def split(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) int64 positions -> (n,) int64 sources and (n,) int64 ranks within their sources."""
        ranks = positions.copy()
        nodes = np.full_like(positions, self._root)
        active = np.flatnonzero(nodes >= 0)
        while active.size:
            node, rank = nodes[active], ranks[active]
            share, total = self._left_shares[node], self._totals[node]
            went_left, phase = scaled(rank, share, total)
            phase += total >> 1
            carry = phase >= total
            went_left += carry
            phase -= carry * total
            goes_left = phase + share >= total
            ranks[active] = np.where(goes_left, went_left, rank - went_left)
            node = self._children[goes_left.astype(np.int64), node]
            nodes[active] = node
            active = active[node >= 0]
        return ~nodes, ranks

    def join(self, source: int, ranks: IntArray) -> IntArray:
        """(n,) int64: the position of each of (n,) int64 ranks of a source; undoes ``split`` by walking up the tree.

        Item r of the left child is the first g of the node for which more than r went left before g + 1: the smallest
        with (g + 1) p / t + 1/2 >= r + 1. For the right child it is the smallest with (g + 1) q / t - 1/2 > r. As with
        ``split`` the caller sees to it that positions stay below 2^62.
        """
        at = ~source
        positions = ranks.copy()
        while at != self._root:
            node, is_left = self._parents[at]
            total, left = int(self._totals[node]), int(self._left_shares[node])
            share = left if is_left else total - left
            whole, rest = divmod(total, share)
            quotient, phase = scaled(positions, np.full_like(positions, rest), np.full_like(positions, share))
            # The item is (2 r + 1) t / (2 share), rounded down, or up and one less.
            positions = positions * whole + quotient + (2 * phase + (total - is_left)) // (2 * share)
            at = node
        return positions

    def counts(self, num_positions: int) -> list[int]:
        """How many of the first ``num_positions`` fall to each source: closed form, O(sources), of any size."""
        below = {self._root: num_positions}
        # Parents are made after their children.
        for node in reversed(range(len(self._totals))):
            total, left = int(self._totals[node]), int(self._left_shares[node])
            here = below.pop(node)
            went_left = (2 * here * left + total) // (2 * total)
            right_child, left_child = self._children[:, node].tolist()
            below[left_child], below[right_child] = went_left, here - went_left
        return [below.get(~source, 0) for source in range(self._num_sources)]

    @cached_property
    def _parents(self) -> dict[int, tuple[int, bool]]:
        """Of every node but the root: its parent, and whether it is the left child."""
        rights, lefts = self._children.tolist()
        return {child: (node, False) for node, child in enumerate(rights)} | {
            child: (node, True) for node, child in enumerate(lefts)
        }


def quantised(weights: Sequence[Weight]) -> list[int]:
    """Shares of sum 2^31 in proportion to ``weights``, each at least 1."""
    if len(weights) > QUANTUM >> 8:
        raise ConfigError(f"a blend takes at most {QUANTUM >> 8:,} sources, found {len(weights):,}")
    fractions = exact_weights(weights)
    tiny = [i for i, weight in enumerate(fractions) if weight * QUANTUM < 1]
    shares = apportion(QUANTUM - len(tiny), [Fraction(0) if i in set(tiny) else w for i, w in enumerate(fractions)])
    for i in tiny:
        shares[i] = 1
    return shares


def counts_until(end: str, weights: Sequence[Weight], num_samples: Sequence[int]) -> list[int]:
    """Exact counts a source for a blend that ends when the first, or the last, source has been seen whole.

    ``first_exhausted``: no source more than once; ``all_exhausted``: every source at least once.
    """
    fractions = exact_weights(weights)
    passes = [num / weight for num, weight in zip(num_samples, fractions, strict=True)]
    scale = min(passes) if end == "first_exhausted" else max(passes)
    return [rounded(scale * weight) for weight in fractions]


MOST_SEGMENTS = 1024

Shares = tuple[int, ...]


def linear_ramp(
    first: Sequence[Weight], last: Sequence[Weight], *, begin: int, end: int, num_segments: int = MOST_SEGMENTS
) -> tuple[tuple[int, Shares], ...]:
    """(first position, shares of sum 2^31) for each segment of a ramp, and at ``end`` the last weights.

    A ramp is defined as ``num_segments`` constant segments, or as many as there are positions: segment k of m has the
    weights half-way through it, first + (last - first) (2 k + 1) / (2 m), of weights of sum 1, and begins at
    begin + floor((end - begin) k / m). All is exact; a weight may be 0 at either end, or at both if the source comes
    in elsewhere, and is share 0 then.

        (1, 0) to (0, 1) over 4 positions in 2 segments     0: 3/4, 1/4     2: 1/4, 3/4     4: 0, 1

    Raises:
        ConfigError: not as many weights at both ends, a weight below 0, all of them 0, no positions, or not 1 to 1,024
            segments.
    """
    if len(first) != len(last):
        raise ConfigError(f"a ramp has a weight of each source at both ends, found {len(first)} and {len(last)}")
    if not 0 <= begin < end or not 1 <= num_segments <= MOST_SEGMENTS:
        raise ConfigError(
            f"a ramp goes over at least one position in 1 to {MOST_SEGMENTS:,} segments, found positions {begin} to "
            f"{end} and {num_segments} segments"
        )
    low, high = _of_sum_one(first), _of_sum_one(last)
    number = min(num_segments, end - begin)
    pieces = []
    for k in range(number):
        along = Fraction(2 * k + 1, 2 * number)
        weights = [a + (b - a) * along for a, b in zip(low, high, strict=True)]
        pieces.append((begin + (end - begin) * k // number, quantised_with_zeros(weights)))
    return (*pieces, (end, quantised_with_zeros(high)))


def quantised_with_zeros(weights: Sequence[Weight]) -> Shares:
    """Shares of sum 2^31, where a weight of 0 is a share of 0."""
    positive = iter(quantised([weight for weight in weights if weight]))
    return tuple(next(positive) if weight else 0 for weight in weights)


def _of_sum_one(weights: Sequence[Weight]) -> list[Fraction]:
    if any(not 0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ConfigError(f"the weights of a ramp are finite and not below 0, and one is above, found {list(weights)}")
    exact = [Fraction(weight) for weight in weights]
    return [weight / sum(exact) for weight in exact]
