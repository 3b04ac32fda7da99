"""Which samples of a source were fed, passed over and are still to come, epoch by epoch, and how often each was seen.

The epochs of a dataset lie one after another, n ranks each. What was fed is a set of pieces of these ranks, and so is
what was passed over and what comes. Epochs in which no piece begins or ends are alike and are counted once, however
many they are; so all is arithmetic on as many pieces as the run has changes:

    epochs of 5       0 1 2 3 4 | 5 6 7 8 9 | 10 11 12 13 14 | ...
    fed               [0, 2) [4, 12)                            2 and 3 were passed over, 12 to 14 come
    epochs            0: 3 fed, 2 dropped     1: all fed     2: 2 fed, 3 to come

How often samples were seen needs more: the fed parts of two epochs overlap in samples that only the orders tell. One
such epoch is arithmetic. If there are several, the samples of all but the largest are looked up as long as they are
few, and otherwise the overlap is estimated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.plan import IntArray, Leaf, LimitNode, Node, Schedule
from headrace.plan.arithmetic import apportion
from headrace.plan.chapters import PlanChapter
from headrace.plan.sequence import NOTHING, SeriesSection, SourceSequence

MOST_LOOKED_UP = 1 << 23
"""Samples that are looked up at most to find how often each was seen; about two seconds."""

MOST_INTERVALS = 1 << 16
"""Most ranges of ranks in which one chapter may feed a source; every pass through a limit is one."""

_AT_ONCE = 1 << 20

Interval = tuple[int, int]


def fed_ranks(chapter: PlanChapter, position: int) -> dict[int, list[Interval]]:
    """Return which ranks of each source a chapter feeds before a position: rising ranges ``[begin, end)``.

    Raises:
        ConfigError: a limit leaves samples out in more passes than are counted one by one.
    """
    found: dict[int, list[Interval]] = {}

    def descend(node: Node, begin: int, end: int, before: dict[str, int]) -> None:
        if begin >= end:
            return
        if isinstance(node, Leaf):
            first = chapter.births[node.path] + before.get(node.path, 0)
            _append(found.setdefault(chapter.sources[node.path], []), first + begin, first + end)
            return
        begin, end = begin + chapter.rank(node), end + chapter.rank(node)
        if isinstance(node, Schedule):
            ends = [*node.begins[1:].tolist(), end]
            for number, (low, high) in enumerate(zip(node.begins.tolist(), ends, strict=True)):
                descend(node.children[number], max(begin, low) - low, min(end, high) - low, node.starts[number])
        elif isinstance(node, LimitNode):
            size = node.num_samples
            first, last = begin // size, (end - 1) // size
            if last - first >= MOST_INTERVALS:
                raise ConfigError(
                    f"{node.path or 'the limit'!r} cuts {last - first + 1:,} passes short before this step, and an "
                    f"account counts at most {MOST_INTERVALS:,} one by one: ask for an earlier step"
                )
            for number in range(first, last + 1):
                skipped = (node.child.num_samples or size) * number
                low, high = max(begin - number * size, 0), min(end - number * size, size)
                descend(node.child, skipped + low, skipped + high, before)
        else:
            for child, low, high in zip(node.children, node.counts(begin), node.counts(end), strict=True):
                descend(child, low, high, before)

    descend(chapter.root, 0, position - chapter.begin, {})
    return found


def _append(intervals: list[Interval], begin: int, end: int) -> None:
    if intervals and intervals[-1][1] == begin:
        begin = intervals.pop()[0]
    intervals.append((begin, end))


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """Return what is in any of some ranges, as rising ranges that do not touch."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            begin, end = found[-1][0], max(end, found.pop()[1])
        found.append((begin, end))
    return found


def gaps(intervals: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """Return what of ``[begin, end)`` is in none of some rising ranges."""
    found = []
    for low, high in intervals:
        if min(low, end) > begin:
            found.append((begin, min(low, end)))
        begin = max(begin, high)
    return [*found, (begin, end)] if begin < end else found


def _overlap(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    return [
        (max(low, begin), min(high, end))
        for low, high in intervals
        for begin, end in others
        if max(low, begin) < min(high, end)
    ]


class SectionRange(NamedTuple):
    """Items of a section: the samples at the ranks ``[begin, end)`` of all epochs, without those that it leaves out."""

    begin: int
    end: int
    section: SeriesSection


def pieces(sequence: SourceSequence, begin: int, end: int) -> Iterator[SectionRange]:
    """Yield what a source yields at the ranks ``begin`` to ``end - 1``."""
    number = max(int(np.searchsorted(sequence.firsts, begin, side="right")) - 1, 0)
    while begin < end:
        section, first = sequence.sections[number], int(sequence.firsts[number])
        beyond = end if section.num_items is None else min(end, first + section.num_items)
        if beyond > begin:
            yield _piece(section, section.place(begin - first), section.place(beyond - first))
        begin, number = beyond, number + 1


def pieces_to_come(sequence: SourceSequence, rank: int, end_epoch: int) -> Iterator[SectionRange]:
    """Yield what a source yields from a rank on, up to an epoch."""
    for section in sequence.rest(rank):
        series = section.series
        border = (end_epoch - series.first_epoch) * series.num_samples
        beyond = border if section.end is None else min(border, section.end)
        if beyond > section.begin:
            yield _piece(section, section.begin, beyond)


def _piece(section: SeriesSection, begin: int, end: int) -> SectionRange:
    shift = section.series.first_epoch * section.series.num_samples
    return SectionRange(begin + shift, end + shift, section)


@dataclass(frozen=True)
class PartOfEpoch:
    """Which samples of one epoch a piece has: its ranks ``[begin, end)`` in the epoch, but for those left out."""

    epoch: int
    begin: int
    end: int
    section: SeriesSection

    @property
    def left_out(self) -> IntArray:
        """(m,) int64, rising: the ranks that are left out, within the piece."""
        ranks = ranks_in(self.section, self.epoch, self.section.left_out)
        return ranks[(ranks >= self.begin) & (ranks < self.end)]

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.end - self.begin - (len(self.left_out) if len(self.section.left_out) else 0)

    def samples(self) -> IntArray:
        """(count,) int64: the numbers of the samples. O(count)."""
        ranks = np.arange(self.begin, self.end, dtype=np.int64)
        if len(self.section.left_out):
            ranks = np.delete(ranks, self.left_out - self.begin)
        return samples_at(self.section, self.epoch, ranks)

    def missing(self) -> IntArray:
        """(m,) int64: the numbers of the samples that are left out."""
        return samples_at(self.section, self.epoch, self.left_out)


def ranks_in(section: SeriesSection, epoch: int, samples: IntArray) -> IntArray:
    """(n,) int64, rising: the ranks of samples within an epoch."""
    if not len(samples):
        return samples
    return np.sort(_ranks(section, epoch, samples))


def _ranks(section: SeriesSection, epoch: int, samples: IntArray) -> IntArray:
    series = section.series
    passes = epoch - series.first_epoch
    return series.ranks(samples, np.full_like(samples, passes)) - passes * series.num_samples


def samples_at(section: SeriesSection, epoch: int, ranks: IntArray) -> IntArray:
    """(n,) int64: the samples at ranks within an epoch."""
    series = section.series
    return series.items(ranks + (epoch - series.first_epoch) * series.num_samples).indices


@dataclass(frozen=True, kw_only=True)
class EpochColumns:
    """Where the samples of an epoch are: each is in one of ``fed``, ``to_come``, ..., ``left_behind``.

    Attributes:
        epoch: the epoch, or the first of ``num_epochs`` that are alike.
        num_epochs: how many there are.
        num_samples: samples in an epoch.
        fed: fed in this epoch.
        to_come: not fed so far.
        deferred: skipped, and still to come in this epoch.
        dropped: skipped, or left out by a limit, and not to come in this epoch.
        excluded: left out by an exclusion.
        left_behind: not fed when the source got other data, which cut the epoch short.
        parts: what was fed.
    """

    epoch: int
    num_epochs: int
    num_samples: int
    fed: int
    to_come: int
    deferred: int
    dropped: int
    excluded: int
    left_behind: int
    parts: tuple[PartOfEpoch, ...] = ()

    def __post_init__(self) -> None:
        """Raise HeadraceError unless every sample is in exactly one column."""
        columns = (self.fed, self.to_come, self.deferred, self.dropped, self.excluded, self.left_behind)
        if sum(columns) != self.num_samples or min(columns) < 0:
            raise HeadraceError(
                f"epoch {self.epoch:,} has {self.num_samples:,} samples, and the account has {sum(columns):,}: "
                f"fed, to come, deferred, dropped, excluded and left behind are {columns}; please report this"
            )

    @property
    def is_complete(self) -> bool:
        """Whether all samples were fed that are not excluded."""
        return self.fed + self.excluded == self.num_samples


@dataclass(eq=False)
class SourceEpochs:
    """Epochs of one dataset of a source, as pieces.

    ``left_out`` is (m,) int64, rising: all samples that are excluded. ``is_cut`` says that a change of the data ended
    the last epoch.
    """

    num_samples: int
    left_out: IntArray = field(default_factory=lambda: NOTHING)
    is_cut: bool = False
    fed: list[SectionRange] = field(default_factory=list)
    passed: list[SectionRange] = field(default_factory=list)
    coming: list[SectionRange] = field(default_factory=list)

    @property
    def end_epoch(self) -> int:
        """The epoch behind the last one that was begun; 0 if none was."""
        ends = [piece.end for piece in (*self.fed, *self.passed)]
        return -(-max(ends) // self.num_samples) if ends else 0

    def columns(self) -> list[EpochColumns]:
        """Return the columns of all epochs that were begun or have samples to come, in rising order.

        O(pieces log pieces), and O(samples that are left out) for each epoch that is told apart.
        """
        size = self.num_samples
        kinds = [sorted(pieces, key=lambda piece: piece.begin) for pieces in (self.fed, self.passed, self.coming)]
        for one, other in pairwise(kinds[0]):
            if one.end > other.begin:
                raise HeadraceError(f"rank {other.begin:,} of a source is fed twice; please report this")
        places = {place for pieces in kinds for piece in pieces for place in (piece.begin, piece.end)}
        borders = sorted({place // size for place in places} | {-(-place // size) for place in places})
        covering: list[tuple[list[SectionRange], ...]] = [([], [], []) for _ in borders]
        for number, pieces in enumerate(kinds):
            for piece in pieces:
                at = bisect_left(borders, piece.begin // size)
                while at < len(borders) and borders[at] * size < piece.end:
                    covering[at][number].append(piece)
                    at += 1
        found = []
        last = self.end_epoch - 1
        for (epoch, end), kinds_here in zip(pairwise(borders), covering, strict=False):
            if any(kinds_here):
                parts = [[_part(piece, epoch, size) for piece in pieces] for pieces in kinds_here]
                # A piece may begin among samples that are left out, up to the end of the epoch.
                parts = [[part for part in some if part.count] for some in parts]
                is_cut = self.is_cut and end > last
                found.append(_columns(epoch, end - epoch, size, self.left_out, *parts, is_cut=is_cut))
        return found


def _part(piece: SectionRange, epoch: int, size: int) -> PartOfEpoch:
    begin, end = max(piece.begin - epoch * size, 0), min(piece.end - epoch * size, size)
    return PartOfEpoch(epoch, begin, end, piece.section)


def _columns(
    epoch: int,
    num_epochs: int,
    size: int,
    left_out: IntArray,
    fed: list[PartOfEpoch],
    passed: list[PartOfEpoch],
    coming: list[PartOfEpoch],
    *,
    is_cut: bool,
) -> EpochColumns:
    """Return the columns of an epoch; ``left_out`` are all samples that are excluded, then or later."""

    def ranges(*parts: PartOfEpoch) -> list[Interval]:
        return united((part.begin, part.end) for part in parts)

    num_fed = sum(part.count for part in fed)
    num_coming = sum(part.count for part in coming)
    deferred = sum(
        PartOfEpoch(epoch, begin, end, part.section).count
        for part in coming
        for begin, end in _overlap(ranges(part), ranges(*passed))
    )
    # What is left out only grows, so that the largest set is the last one that held while the epoch had samples.
    sections = [part.section for part in (*fed, *passed, *coming)]
    last = max(sections, key=lambda section: len(section.left_out), default=None)
    held = NOTHING if last is None else ranks_in(last, epoch, last.left_out)
    lost = _overlap(ranges(*passed), gaps(ranges(*fed, *coming), 0, size))
    dropped = sum(end - begin - int(np.diff(np.searchsorted(held, [begin, end]))[0]) for begin, end in lost)
    # Excluded is what never came, and what was skipped and then left out while the epoch still had samples.
    out = held
    if last is not None and len(left_out) > len(held):
        out = ranks_in(last, epoch, left_out)
    out = _without(out, [*fed, *coming])
    excluded = len(out) - int(np.count_nonzero(~np.isin(out, held) & ~np.isin(out, _without(out, passed))))
    rest = size - num_fed - num_coming - dropped - excluded
    return EpochColumns(
        epoch=epoch,
        num_epochs=num_epochs,
        num_samples=size,
        fed=num_fed,
        to_come=num_coming - deferred,
        deferred=deferred,
        dropped=dropped,
        excluded=excluded,
        left_behind=rest if is_cut else 0,
        parts=tuple(fed),
    )


def _without(ranks: IntArray, parts: Iterable[PartOfEpoch]) -> IntArray:
    """Return the ranks that some parts do not have."""
    for part in parts:
        if len(ranks):
            inside = (ranks >= part.begin) & (ranks < part.end)
            ranks = ranks[~inside | np.isin(ranks, part.left_out)]
    return ranks


class Seen(NamedTuple):
    """How many samples were seen how often, and whether that is exact or an estimate."""

    counts: dict[int, int]
    is_exact: bool


class _Term(Protocol):
    """How often samples were seen in some epochs."""

    def times(self, samples: IntArray) -> IntArray:
        """Return (n,) int64: how often each sample was seen."""

    def counts(self) -> dict[int, int]:
        """Return how many samples were seen how often."""


class _Partly:
    """One shuffled epoch of which a part was fed."""

    def __init__(self, columns: EpochColumns) -> None:
        self.parts = sorted(columns.parts, key=lambda part: part.begin)
        self.num_samples = columns.num_samples
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
        ranks = _ranks(self.parts[0].section, self.parts[0].epoch, samples)
        for part in self.parts:
            inside = (ranks >= part.begin) & (ranks < part.end)
            if len(part.section.left_out):
                inside &= ~np.isin(ranks, part.left_out)
            found += inside
        return found

    def counts(self) -> dict[int, int]:
        return {0: self.num_samples - self.fed, 1: self.fed}


class _AsStored:
    """Epochs in the order of the store of which parts were fed: the ranks are the samples."""

    def __init__(self, all_columns: Sequence[EpochColumns]) -> None:
        parts = [part for columns in all_columns for part in columns.parts]
        self.first = parts[0].section.series.leaf.first_sample
        points: dict[int, int] = Counter({0: 0, all_columns[0].num_samples: 0})
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


class _Nothing:
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def times(self, samples: IntArray) -> IntArray:
        return np.zeros_like(samples)

    def counts(self) -> dict[int, int]:
        return {0: self.num_samples}


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
        elif columns.fed and all(part.section.series.order.kind == "none" for part in columns.parts):
            stored.append(columns)
        elif columns.fed:
            terms.append(_Partly(columns))
    terms.sort(key=lambda term: term.cost)
    closed: _Term = _Nothing(size)
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
