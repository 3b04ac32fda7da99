"""How often each sample of a source was seen.

Epochs that were fed whole are arithmetic, and so is one that was fed in part. If there are several of these, their
parts overlap in samples that only the orders tell: the samples of all but the largest are looked up as long as they are
few, and otherwise the overlap is estimated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from headrace.plan import IntArray, Leaf
from headrace.plan.arithmetic import apportion
from headrace.plan.chaptered.epochs import EpochColumns, gaps, ranks_of, samples_at
from headrace.plan.chaptered.sequence import NOTHING

MOST_LOOKED_UP = 1 << 23
"""Samples that are looked up at most to find how often each was seen; about two seconds."""

_AT_ONCE = 1 << 20


class Seen(NamedTuple):
    """How many samples were seen how often, and whether that is exact or an estimate."""

    counts: dict[int, int]
    is_exact: bool


class _Term:
    """How often samples were seen in some epochs; here never."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def times(self, samples: IntArray) -> IntArray:
        """Return (n,) int64: how often each sample was seen."""
        return np.zeros_like(samples)

    def counts(self) -> dict[int, int]:
        """Return how many samples were seen how often."""
        return {0: self.num_samples}


class _Partly(_Term):
    """One shuffled epoch of which a part was fed."""

    def __init__(self, columns: EpochColumns) -> None:
        super().__init__(columns.num_samples)
        self.parts = sorted(columns.parts, key=lambda part: part.begin)
        self.fed = columns.fed

    @property
    def is_mostly_fed(self) -> bool:
        """Whether the samples that were not fed are fewer."""
        return 2 * self.fed > self.num_samples

    @property
    def cost(self) -> int:
        """How many samples have to be looked up to know them all."""
        return self.num_samples - self.fed if self.is_mostly_fed else self.fed

    def fewer(self) -> IntArray:
        """(cost,) int64: the samples that were fed, or those that were not if they are fewer."""
        if not self.is_mostly_fed:
            return np.concatenate([part.samples() for part in self.parts])
        first = self.parts[0]
        holes = gaps([(part.begin, part.end) for part in self.parts], 0, self.num_samples)
        ranks = [np.arange(begin, end, dtype=np.int64) for begin, end in holes]
        missing = [part.missing() for part in self.parts]
        return np.concatenate([*missing, samples_at(first.section, first.epoch, np.concatenate([NOTHING, *ranks]))])

    def times(self, samples: IntArray) -> IntArray:
        found = np.zeros_like(samples)
        ranks = ranks_of(self.parts[0].section, self.parts[0].epoch, samples)
        for part in self.parts:
            inside = (ranks >= part.begin) & (ranks < part.end)
            if len(part.section.left_out):
                inside &= ~np.isin(ranks, part.left_out)
            found += inside
        return found

    def counts(self) -> dict[int, int]:
        return {0: self.num_samples - self.fed, 1: self.fed}


class _AsStored(_Term):
    """Epochs in the order of the store of which parts were fed: the ranks are the samples."""

    def __init__(self, all_columns: Sequence[EpochColumns]) -> None:
        super().__init__(all_columns[0].num_samples)
        parts = [part for columns in all_columns for part in columns.parts]
        self.first = parts[0].section.series.leaf.first_sample
        points: dict[int, int] = Counter({0: 0, self.num_samples: 0})
        for part in parts:
            left_out = part.left_out.tolist()
            for place, change in ((part.begin, 1), (part.end, -1)):
                points[place] += change
            for place in left_out:
                points[place] -= 1
                points[place + 1] += 1
        self.places: IntArray = np.array(sorted(points), dtype=np.int64)
        self.values: IntArray = np.cumsum([points[place] for place in self.places.tolist()]).astype(np.int64)

    def times(self, samples: IntArray) -> IntArray:
        found: IntArray = self.values[np.searchsorted(self.places, samples - self.first, side="right") - 1]
        return found

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = Counter()
        for value, length in zip(self.values.tolist(), np.diff(self.places).tolist(), strict=False):
            found[value] += length
        return found


def seen(all_columns: Sequence[EpochColumns], leaf: Leaf, *, exact: bool = False) -> Seen:
    """Return how many samples of a dataset were seen 0, 1, 2, ... times.

    Closed form for whole epochs and for one that is not. Otherwise at most `MOST_LOOKED_UP` samples are looked up; if
    more are needed, the result is an estimate, which takes the orders of epochs to be independent. With ``exact``
    every sample is looked up in each such epoch if need be, about 0.1 us each.
    """
    size = leaf.num_samples
    base = 0
    terms: list[_Partly] = []
    stored: list[EpochColumns] = []
    changes: list[tuple[IntArray, int]] = []
    for columns in all_columns:
        if columns.fed == size:
            base += columns.num_epochs
        elif columns.fed and sum(part.end - part.begin for part in columns.parts) == size and len(columns.parts) == 1:
            # All but what is left out, which is known without a look at the order.
            base += columns.num_epochs
            changes.append((columns.parts[0].section.left_out, -columns.num_epochs))
        elif columns.fed and not any(part.section.series.order.draws for part in columns.parts):
            stored.append(columns)
        elif columns.fed:
            terms.append(_Partly(columns))
    terms.sort(key=lambda term: term.cost)
    closed = _Term(size)
    if stored:
        closed = _AsStored(stored)
    elif terms:
        closed = terms.pop()
    if sum(term.cost for term in terms) <= MOST_LOOKED_UP:
        for term in terms:
            base += term.is_mostly_fed
            changes.append((term.fewer(), -1 if term.is_mostly_fed else 1))
        return Seen(_shifted(_joined(closed, changes), base), is_exact=True)
    if exact:
        return Seen(_shifted(_scanned([closed, *terms], changes, leaf), base), is_exact=True)
    return Seen(_shifted(_estimated([closed, *terms], changes, size), base), is_exact=False)


def _joined(closed: _Term, changes: Sequence[tuple[IntArray, int]]) -> dict[int, int]:
    """Return the counts of a term with changes at some samples."""
    found = Counter(closed.counts())
    if not changes:
        return found
    samples, places = np.unique(np.concatenate([samples for samples, _ in changes]), return_inverse=True)
    weights = np.concatenate([np.full(len(samples), weight, dtype=np.int64) for samples, weight in changes])
    times = closed.times(samples)
    changed = times.copy()
    np.add.at(changed, places, weights)
    for values, sign in ((times, -1), (changed, 1)):
        for value, count in zip(*(column.tolist() for column in np.unique(values, return_counts=True)), strict=True):
            found[value] += sign * count
    return found


def _scanned(terms: Sequence[_Term], changes: Sequence[tuple[IntArray, int]], leaf: Leaf) -> dict[int, int]:
    """Return the counts of several terms by a look at every sample in each of them."""
    found: Counter[int] = Counter()
    end = leaf.first_sample + leaf.num_samples
    for begin in range(leaf.first_sample, end, _AT_ONCE):
        samples = np.arange(begin, min(begin + _AT_ONCE, end), dtype=np.int64)
        times = np.sum([term.times(samples) for term in terms], axis=0)
        for some, weight in changes:
            np.add.at(times, some[(some >= begin) & (some < begin + len(samples))] - begin, weight)
        for value, count in zip(*(column.tolist() for column in np.unique(times, return_counts=True)), strict=True):
            found[value] += count
    return found


def _estimated(terms: Sequence[_Term], changes: Sequence[tuple[IntArray, int]], size: int) -> dict[int, int]:
    """Return the counts of several terms as if their samples were drawn independently."""
    shares = np.ones(1)
    shift = 0
    for term in terms:
        counts = term.counts()
        own = np.zeros(max(counts) + 1)
        own[list(counts)] = np.array(list(counts.values())) / size
        shares = np.convolve(shares, own)
        kept = np.flatnonzero(shares > 1e-15)
        shift += int(kept[0])
        shares = shares[kept[0] : kept[-1] + 1]
    for some, weight in changes:
        # Few samples, which are taken to have been seen as often as the others.
        share = len(some) / size
        padded = np.zeros(len(shares) + abs(weight))
        padded[max(-weight, 0) :][: len(shares)] += shares * (1 - share)
        padded[max(weight, 0) :][: len(shares)] += shares * share
        shares, shift = padded, shift + min(weight, 0)
    whole = apportion(size, [Fraction(float(share)) for share in shares])
    return {number + shift: count for number, count in enumerate(whole)}


def _shifted(counts: dict[int, int], base: int) -> dict[int, int]:
    return {times + base: counts[times] for times in sorted(counts) if counts[times]}
