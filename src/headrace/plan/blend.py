"""Which source a position of a blend falls to, and the rank within that source.

The sources are the leaves of a Huffman tree of two-way splits. A node with total t passes p of every t items to its
left child, as evenly as integers allow: item g goes left iff floor((g+1)p/t + 1/2) > floor(g p/t + 1/2), and the number
that went left before is floor(g p/t + 1/2) (a Beatty sequence). So the source and the rank within the source are found
by walking down the tree from the position alone, O(log sources).

    shares 2 : 1        position  0  1  2  3  4  5
                        source    A  B  A  A  B  A
                        rank      0  0  1  2  1  3

How far the counts of a prefix can stray from the shares: an internal child of a Huffman tree holds at most 2/3 of its
parent, so its deviation is at most 1/2 / (1 - 2/3), and that of a leaf half a sample more. This is below 2 samples at
every prefix, for any number of sources. After exactly t positions the counts are exactly the shares, and the sequence
repeats.

``linear_ramp`` turns weights that move in a straight line from one mix to another into segments of a `Schedule`.
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
"""Weights are quantised to integers with this sum."""

_MAX_TOTAL = 1 << 61


class BlendTree:
    """The Huffman tree over integer ``shares``; sources with share 0 are never chosen.

    Example:
        >>> tree = headrace.plan.BlendTree([2, 1])
        >>> sources, ranks = tree.split(np.arange(6))
        >>> sources.tolist(), ranks.tolist()
        ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3])
        >>> tree.join(1, np.arange(2)).tolist()
        [1, 4]
    """

    def __init__(self, shares: Sequence[int]) -> None:
        if not shares:
            raise ConfigError("a blend has no shares; give one for each of its sources, and at least one")
        if sum(shares) > _MAX_TOTAL or min(shares) < 0 or sum(shares) == 0:
            raise ConfigError(
                f"shares must be at least 0 and their sum from 1 to 2^61, found a sum of {sum(shares)} and a smallest "
                f"share of {min(shares)}"
            )
        lefts: list[int] = []
        rights: list[int] = []
        left_shares: list[int] = []
        totals: list[int] = []
        # (share, age, node): sources are ~i, inner nodes >= 0; the age breaks ties in the same way everywhere.
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
        """Map (n,) int64 positions to (n,) int64 sources and (n,) int64 ranks within their sources."""
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
        """Return (n,) int64: the position of each of (n,) int64 ranks of a source.

        This undoes ``split`` by walking up the tree. Item r of the left child is the first item g of the node for which
        more than r items went left before g + 1: the smallest g with (g + 1) p / t + 1/2 >= r + 1. For the right child
        it is the smallest with (g + 1) q / t - 1/2 > r. As with ``split``, the caller makes sure that positions stay
        below 2^62.
        """
        at = ~source
        positions = ranks.copy()
        while at != self._root:
            node, is_left = self._parents[at]
            total, left = int(self._totals[node]), int(self._left_shares[node])
            share = left if is_left else total - left
            whole, rest = divmod(total, share)
            quotient, phase = scaled(positions, np.full_like(positions, rest), np.full_like(positions, share))
            # The item is (2 r + 1) t / (2 share): rounded down for a left child; rounded up, less one, for a right one.
            positions = positions * whole + quotient + (2 * phase + (total - is_left)) // (2 * share)
            at = node
        return positions

    def counts(self, num_positions: int) -> list[int]:
        """Return how many of the first ``num_positions``, of any size, fall to each source. Closed form, O(sources)."""
        below = {self._root: num_positions}
        nodes = zip(self._totals.tolist(), self._left_shares.tolist(), *self._children.tolist(), strict=True)
        # Parents have larger numbers than their children.
        for node, (total, left, right_child, left_child) in reversed(list(enumerate(nodes))):
            here = below.pop(node)
            went_left = (2 * here * left + total) // (2 * total)
            below[left_child], below[right_child] = went_left, here - went_left
        return [below.get(~source, 0) for source in range(self._num_sources)]

    @cached_property
    def _parents(self) -> dict[int, tuple[int, bool]]:
        """For every node but the root: its parent, and whether it is the left child."""
        rights, lefts = self._children.tolist()
        return {child: (node, False) for node, child in enumerate(rights)} | {
            child: (node, True) for node, child in enumerate(lefts)
        }


def quantised(weights: Sequence[Weight]) -> list[int]:
    """Return shares with the sum 2^31 in proportion to ``weights``, each at least 1."""
    if len(weights) > QUANTUM >> 8:
        raise ConfigError(f"a blend has {len(weights):,} sources; at most {QUANTUM >> 8:,} are allowed")
    fractions = exact_weights(weights)
    tiny = {i for i, weight in enumerate(fractions) if weight.numerator * QUANTUM < weight.denominator}
    shares = apportion(QUANTUM - len(tiny), [0 if i in tiny else weight for i, weight in enumerate(fractions)])
    return [1 if i in tiny else share for i, share in enumerate(shares)]


def counts_until(end: str, weights: Sequence[Weight], num_samples: Sequence[int]) -> list[int]:
    """Return the exact count of each source in a blend that ends when the first, or the last, source is exhausted.

    With ``first_exhausted`` no source is read more than once; with ``all_exhausted`` every source is read at least
    once.
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
    """Return (first position, shares with the sum 2^31) for each segment of a ramp, and for ``end`` the last weights.

    A ramp consists of ``num_segments`` constant segments, or fewer if there are fewer positions. Segment k of m has the
    weights half-way through it, first + (last - first) (2 k + 1) / (2 m), where both ends are scaled to the sum 1; it
    begins at begin + floor((end - begin) k / m). The arithmetic is exact. A weight may be 0 at either end, or at both
    if the source appears elsewhere; its share is then 0.

        (1, 0) to (0, 1) over 4 positions in 2 segments     0: 3/4, 1/4     2: 1/4, 3/4     4: 0, 1

    Raises:
        ConfigError: the two ends differ in their number of weights, a weight is below 0 or infinite, all weights are 0,
            there are no positions, or the number of segments is not from 1 to 1,024.
    """
    if len(first) != len(last):
        raise ConfigError(
            f"a ramp needs a weight for each source at both ends, found {len(first)} and {len(last)} weights"
        )
    if not 0 <= begin < end or not 1 <= num_segments <= MOST_SEGMENTS:
        raise ConfigError(
            f"a ramp covers at least one position, in 1 to {MOST_SEGMENTS:,} segments; found positions {begin} to "
            f"{end} and {num_segments} segments"
        )
    low, high = _of_sum_one(first), _of_sum_one(last)
    number = min(num_segments, end - begin)
    segments = []
    for k in range(number):
        along = Fraction(2 * k + 1, 2 * number)
        weights = [a + (b - a) * along for a, b in zip(low, high, strict=True)]
        segments.append((begin + (end - begin) * k // number, quantised_with_zeros(weights)))
    return (*segments, (end, quantised_with_zeros(high)))


def quantised_with_zeros(weights: Sequence[Weight]) -> Shares:
    """Return shares with the sum 2^31; a weight of 0 becomes a share of 0."""
    positive = iter(quantised([weight for weight in weights if weight]))
    return tuple(next(positive) if weight else 0 for weight in weights)


def _of_sum_one(weights: Sequence[Weight]) -> list[Fraction]:
    if any(not 0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ConfigError(
            f"the weights at an end of a ramp are finite and at least 0, and not all are 0; found {list(weights)}"
        )
    exact = [Fraction(weight) for weight in weights]
    return [weight / sum(exact) for weight in exact]
