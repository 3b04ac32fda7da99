"""Which samples of a source were fed, passed over and are still to come, epoch by epoch.

The epochs of a dataset lie one after another, n ranks each. What was fed is a set of pieces of these ranks, and so is
what was passed over and what comes. Epochs in which no piece begins or ends are alike and are counted once, however
many they are; so all is arithmetic on as many pieces as the run has changes:

    epochs of 5       0 1 2 3 4 | 5 6 7 8 9 | 10 11 12 13 14 | ...
    fed               [0, 2) [4, 12)                            2 and 3 were passed over, 12 to 14 come
    epochs            0: 3 fed, 2 dropped     1: all fed     2: 2 fed, 3 to come
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.plan.chaptered.chapters import ChapteredPlan, PlanChapter, spans_of
from headrace.plan.chaptered.sequence import NOTHING, EpochSeries, SeriesSection, SourceSequence
from headrace.plan.keys import IntArray
from headrace.plan.nodes import Leaf, LimitNode, Node

MOST_INTERVALS = 1 << 16
"""Most ranges of ranks in which one chapter may feed a source; every pass through a limit is one."""

Interval = tuple[int, int]


def fed_before(
    chapters: Sequence[PlanChapter],
    position: int,
    begin: int = 0,
    known: Mapping[int, Sequence[Interval]] | None = None,
) -> dict[int, list[Interval]]:
    """Return which ranks of each source some chapters feed before a position; see `fed_ranks`.

    ``known`` is what they feed before ``begin``.
    """
    found = {source: list(intervals) for source, intervals in (known or {}).items()}
    for chapter, first, last in spans_of(chapters, begin, position):
        for source, intervals in fed_ranks(chapter, first, last).items():
            mine = found.setdefault(source, [])
            for interval in intervals:
                _append(mine, *interval)
    return found


def fed_ranks(chapter: PlanChapter, begin: int, end: int, *, most: int = MOST_INTERVALS) -> dict[int, list[Interval]]:
    """Return which ranks of each source a chapter feeds at the positions ``[begin, end)``, as rising ranges.

    Raises:
        ConfigError: a limit leaves samples out in more passes than are counted one by one.
    """
    found: dict[int, list[Interval]] = {}

    def descend(node: Node, begin: int, end: int) -> None:
        if begin >= end:
            return
        if isinstance(node, Leaf):
            first = chapter.births[node.path]
            _append(found.setdefault(chapter.sources[node.path], []), first + begin, first + end)
            return
        begin, end = begin + chapter.rank(node), end + chapter.rank(node)
        if isinstance(node, LimitNode):
            size = node.num_samples
            first, last = begin // size, (end - 1) // size
            if last - first >= most:
                raise ConfigError(
                    f"{node.path or 'the limit'!r} cuts {last - first + 1:,} passes short before this step, and an "
                    f"account counts at most {most:,} one by one: ask for an earlier step"
                )
            for number in range(first, last + 1):
                skipped = (node.child.num_samples or size) * number
                low, high = max(begin - number * size, 0), min(end - number * size, size)
                descend(node.child, skipped + low, skipped + high)
        else:
            for child, low, high in zip(node.children, node.counts(begin), node.counts(end), strict=True):
                descend(child, low, high)

    descend(chapter.root, begin - chapter.begin, end - chapter.begin)
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
    return np.sort(ranks_of(section, epoch, samples))


def ranks_of(section: SeriesSection, epoch: int, samples: IntArray) -> IntArray:
    """(n,) int64: the rank of each sample within an epoch."""
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


@dataclass(eq=False)
class SourceEpochs:
    """Epochs of one dataset of a source, as pieces.

    ``series`` is the first that has its samples. ``left_out`` is (m,) int64, rising: all samples that are excluded.
    ``is_cut`` says that a change of the data ended the last epoch.
    """

    series: EpochSeries
    left_out: IntArray = field(default_factory=lambda: NOTHING)
    is_cut: bool = False
    fed: list[SectionRange] = field(default_factory=list)
    passed: list[SectionRange] = field(default_factory=list)
    coming: list[SectionRange] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        """Whether there is anything to say of the dataset."""
        return bool(self.fed or self.passed or self.coming)

    @property
    def end_epoch(self) -> int:
        """The epoch behind the last one that was begun; 0 if none was."""
        ends = [piece.end for piece in (*self.fed, *self.passed)]
        return -(-max(ends) // self.series.num_samples) if ends else 0

    def columns(self) -> list[EpochColumns]:
        """Return the columns of all epochs that were begun or have samples to come, in rising order.

        O(pieces log pieces), and O(samples that are left out) for each epoch that is told apart.
        """
        size = self.series.num_samples
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


def source_epochs(
    sequence: SourceSequence, fed: Sequence[Interval], reached: int
) -> tuple[list[SourceEpochs], SourceEpochs]:
    """Return the epochs of a source, one for each dataset that it had after another, and those that it is in.

    Args:
        sequence: what the source yields.
        fed: the ranks that were fed, rising ranges that do not touch.
        reached: the rank at which the source goes on.
    """
    found: list[SourceEpochs] = []
    of: dict[SeriesSection, SourceEpochs] = {}
    for section in sequence.sections:
        if not found or section.series.leaf is not found[-1].series.leaf:
            # Other data come, which cut the last epoch of those before short.
            for epochs in found:
                epochs.is_cut = True
            found.append(SourceEpochs(section.series))
        of[section] = found[-1]
        of[section].left_out = max(of[section].left_out, section.left_out, key=len)
    for intervals, name in ((fed, "fed"), (gaps(fed, 0, reached), "passed")):
        for begin, end in intervals:
            for piece in pieces(sequence, begin, end):
                getattr(of[piece.section], name).append(piece)
    present = sequence.rest(reached)[0]
    current = of[sequence.section_at(reached)[0]]
    end_epoch = max(current.end_epoch, present.epoch + (not current.end_epoch))
    # With bucketing, some of what comes may lie before what was fed.
    beyond = max([reached, *(end for _, end in fed)])
    for begin, end in gaps(fed, reached, beyond):
        current.coming += pieces(sequence, begin, end)
    current.coming += pieces_to_come(sequence, beyond, end_epoch)
    return found, current


def check_change(plan: ChapteredPlan, position: int, num_skipped: int, fed: Mapping[int, Sequence[Interval]]) -> None:
    """Check by sums that every source goes on where it is at a position, and at all later chapters.

    Each sample of an epoch that is under way was fed once, or still comes, or was dropped, excluded or left behind; all
    that was fed makes up the positions so far, and all that was passed over what was skipped; and no chapter that
    comes takes a source back or ahead. Reads nothing. O(sources x chapters).

    Args:
        plan: the plan.
        position: the position of its last change.
        num_skipped: how many positions were skipped so far.
        fed: what was fed before the position, see `fed_before`.

    Raises:
        HeadraceError: something would be fed twice, or never; the message says what.
    """
    reached = plan.reached(position)
    try:
        for source, sequence in enumerate(plan.sequences):
            intervals = united(fed.get(source, ()))
            for epochs in source_epochs(sequence, intervals, reached[source])[0]:
                epochs.columns()
        num_fed = sum(end - begin for intervals in fed.values() for begin, end in intervals)
        passed = sum(reached.values()) - num_fed
        if num_fed != position or passed < num_skipped or (passed > num_skipped and not _passes_over(plan, position)):
            raise HeadraceError(
                f"the sources would have fed {num_fed:,} samples and passed over {passed:,}, and the run {position:,} "
                f"and {num_skipped:,}; please report this"
            )
        coming = bisect_left(plan.chapters, position, key=attrgetter("begin"))
        for one, after in pairwise(plan.chapters[coming:]):
            reached |= one.reached(after.begin)
            for source, rank in after.reached(after.begin).items():
                if rank != reached[source]:
                    raise HeadraceError(
                        f"source {after.paths[source]!r} would go on at its sample {rank:,} at position "
                        f"{after.begin:,}, and is at {reached[source]:,}; please report this"
                    )
    except HeadraceError as error:
        raise HeadraceError(f"the change at position {position:,} is refused, as it is wrong: {error}") from error


def _passes_over(plan: ChapteredPlan, position: int) -> bool:
    """Return whether there is a limit before a position: it passes over samples of its own."""
    return any(_has_limits(one.root) for one in plan.chapters if one.begin < position or not one.begin)


def _has_limits(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return isinstance(node, LimitNode) or any(map(_has_limits, node.children))
