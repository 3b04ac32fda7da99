"""The sequence of one source: what it yields at each rank, over a whole run, through all changes of the run.

Without changes a source yields one epoch after another, each a permutation of its samples (`EpochSeries`). A change of
the run may replace what comes from some rank on: another order from the next epoch on, samples that are left out,
samples that were skipped and come later. So a sequence is a list of sections (`SeriesSection`), each a range of ranks
of a series, and the last one has no end:

    series                   0 1 2 3 4 | 5 6 7 8 9 | ...        epochs of 5 samples
    1 to 3 put off           0 1 2 3 | 4 | 1 2 3 | 5 6 7 ...    from rank 4 on; ranks 1 to 3 are skipped
    sections                 [0, 4)   [4, 5)  [1, 4)  [5, ...)

All is arithmetic. Samples that are left out cost O(their number) for each epoch that is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.nodes import Leaf
from headrace.plan.order import Order
from headrace.plan.tree import Lookup

_KEPT_TABLES = 16
NOTHING: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class EpochSeries:
    """Epochs one after another, each a permutation of the samples of a source; rank 0 is the begin of the first.

    Attributes:
        number: its own, among all of the run.
        leaf: number of samples, and their shards.
        order: the order within each epoch.
        key: the key from which those of the epochs are derived.
        first_epoch: number of the first epoch.
    """

    number: int
    leaf: Leaf
    order: Order
    key: int
    first_epoch: int = 0

    @property
    def num_samples(self) -> int:
        """The number of samples in an epoch."""
        return self.leaf.num_samples

    def keys(self, epochs: IntArray) -> KeyArray:
        """Return (n,) uint64: the keys of (n,) int64 epochs."""
        return self.order.epoch_keys(self.key, epochs)

    def items(self, ranks: IntArray) -> Lookup:
        """Return what comes at (n,) int64 ranks; the number of the series is the source of the `Lookup`."""
        leaf = self.leaf
        passes = ranks // leaf.num_samples
        epochs = passes + self.first_epoch if self.first_epoch else passes
        keys = self.keys(epochs)
        indices = self.order.indices(ranks - passes * leaf.num_samples, keys, leaf.num_samples, leaf.shards)
        if leaf.first_sample:
            indices = indices + leaf.first_sample
        return Lookup(np.full_like(ranks, self.number), epochs, indices, keys)

    def ranks(self, indices: IntArray, passes: IntArray) -> IntArray:
        """Return (n,) int64: the rank of each sample in the epoch after so many passes; undoes ``items``."""
        leaf = self.leaf
        keys = self.keys(passes + self.first_epoch)
        within = self.order.ranks(indices - leaf.first_sample, keys, leaf.num_samples, leaf.shards)
        return passes * leaf.num_samples + within


@dataclass(frozen=True, eq=False)
class SeriesSection:
    """The ranks ``begin`` to ``end - 1`` of a series, without some samples; an ``end`` of None is no end.

    Its items are numbered from 0. ``left_out`` is (m,) int64, rising: numbers of samples of the dataset.
    """

    series: EpochSeries
    begin: int
    end: int | None = None
    left_out: IntArray = field(default_factory=lambda: NOTHING)
    _tables: dict[int, IntArray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigError if no sample is left."""
        if len(self.left_out) >= self.series.num_samples:
            raise ConfigError(
                f"all {self.series.num_samples:,} samples of source {self.series.leaf.path!r} are excluded: remove "
                "the source instead"
            )

    @property
    def num_items(self) -> int | None:
        """The number of items; None without an end."""
        return None if self.end is None else self._before(self.end) - self._before(self.begin)

    def ranks(self, items: IntArray) -> IntArray:
        """Return (n,) int64: the rank in the series of each item."""
        if not len(self.left_out):
            return items + self.begin
        places = items + self._before(self.begin)
        passes, within = np.divmod(places, self.series.num_samples - len(self.left_out))
        found = passes * self.series.num_samples + within
        for number in np.unique(passes).tolist():
            mine = passes == number
            table = self._table(number)
            # Entry i of the table lies behind table[i] - i of the samples that are kept.
            found[mine] += np.searchsorted(table - np.arange(len(table)), within[mine], side="right")
        return found

    def items_of(self, ranks: IntArray) -> IntArray:
        """Return (n,) int64: the item at each rank of the series that is in the section; undoes ``ranks``."""
        if not len(self.left_out):
            return ranks - self.begin
        passes, within = np.divmod(ranks, self.series.num_samples)
        found = passes * (self.series.num_samples - len(self.left_out)) + within
        for number in np.unique(passes).tolist():
            mine = passes == number
            found[mine] -= np.searchsorted(self._table(number), within[mine])
        return found - self._before(self.begin)

    def times(self, index: int, begin: int, end: int) -> tuple[IntArray, IntArray]:
        """Return at which of the items ``begin`` to ``end - 1`` a sample comes, rising, and its epochs; (n,) int64."""
        place = int(np.searchsorted(self.left_out, index))
        if begin >= end or (place < len(self.left_out) and self.left_out[place] == index):
            return NOTHING, NOTHING
        first, last = self.ranks(np.array([begin, end - 1], dtype=np.int64)) // self.series.num_samples
        passes = np.arange(first, last + 1, dtype=np.int64)
        ranks = self.series.ranks(np.full_like(passes, index), passes)
        inside = ranks >= self.begin
        if self.end is not None:
            inside &= ranks < self.end
        items = self.items_of(ranks[inside])
        taken = (items >= begin) & (items < end)
        return items[taken], passes[inside][taken] + self.series.first_epoch

    @property
    def epoch(self) -> int:
        """The epoch of the first item."""
        return (self.place(1) - 1) // self.series.num_samples + self.series.first_epoch

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch of the first item comes before the section."""
        return self.begin <= (self.epoch - self.series.first_epoch) * self.series.num_samples

    def place(self, items: int) -> int:
        """Return the rank in the series behind so many items."""
        if not items or not len(self.left_out):
            return self.begin + items
        return int(self.ranks(np.array([items - 1], dtype=np.int64))[0]) + 1

    def cut(self, items: int) -> SeriesSection | None:
        """Return the section without its first items; None if nothing is left of it."""
        if self.num_items is not None and items >= self.num_items:
            return None
        return replace(self, begin=self.place(items)) if items else self

    def without(self, left_out: IntArray) -> SeriesSection:
        """Return the section with more samples left out."""
        return replace(self, left_out=np.union1d(self.left_out, left_out), _tables={})

    def _before(self, rank: int) -> int:
        """Return how many samples that are kept come before a rank of the series."""
        if not len(self.left_out):
            return rank
        passes, within = divmod(rank, self.series.num_samples)
        kept = passes * (self.series.num_samples - len(self.left_out)) + within
        return kept - int(np.searchsorted(self._table(passes), within)) if within else kept

    def _table(self, number: int) -> IntArray:
        """(m,) int64, rising: where in one epoch the samples are that are left out. O(m log m), and then cached."""
        if number not in self._tables:
            passes = np.full_like(self.left_out, number)
            ranks = self.series.ranks(self.left_out, passes) - number * self.series.num_samples
            while len(self._tables) >= _KEPT_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[number] = np.sort(ranks)
        return self._tables[number]


class SourceSequence:
    """The sections of one source, one after another; only the last one has no end.

    Example:
        >>> series = EpochSeries(0, Leaf("web", 5), Order(kind="none"), key=1)
        >>> sequence = SourceSequence([SeriesSection(series, 0)])
        >>> sequence.items(np.arange(7)).indices.tolist()
        [0, 1, 2, 3, 4, 0, 1]
        >>> later = [SeriesSection(series, 4, 5), SeriesSection(series, 1, 4), SeriesSection(series, 5)]
        >>> put_off = sequence.changed(4, later)
        >>> put_off.items(np.arange(4, 10)).indices.tolist()
        [4, 1, 2, 3, 0, 1]
    """

    def __init__(self, sections: Sequence[SeriesSection]) -> None:
        self.sections = tuple(sections)
        self.firsts: IntArray = np.zeros(len(self.sections), dtype=np.int64)
        np.cumsum(np.array([section.num_items for section in self.sections[:-1]], dtype=np.int64), out=self.firsts[1:])

    def items(self, ranks: IntArray) -> Lookup:
        """Return what comes at (n,) int64 ranks."""
        if len(self.sections) == 1:
            section = self.sections[0]
            return section.series.items(section.ranks(ranks))
        numbers = np.searchsorted(self.firsts, ranks, side="right") - 1
        empty = np.empty_like(ranks)
        found = Lookup(empty, empty.copy(), empty.copy(), np.empty(ranks.shape, dtype=np.uint64))
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            section = self.sections[number]
            mine = section.series.items(section.ranks(ranks[rows] - self.firsts[number]))
            for column, values in zip(found, mine, strict=True):
                column[rows] = values
        return found

    def times(self, series: int, index: int, begin: int, end: int) -> tuple[IntArray, IntArray]:
        """Return at which of the ranks ``begin`` to ``end - 1`` a sample of a series comes, and its epochs."""
        parts = [(NOTHING, NOTHING)]
        first = max(int(np.searchsorted(self.firsts, begin, side="right")) - 1, 0)
        for number in range(first, len(self.sections)):
            section, low = self.sections[number], int(self.firsts[number])
            if low >= end:
                break
            if section.series.number == series:
                count = section.num_items
                last = end - low if count is None else min(end - low, count)
                ranks, epochs = section.times(index, max(begin - low, 0), last)
                parts.append((ranks + low, epochs))
        found, epochs = (np.concatenate(column) for column in zip(*parts, strict=True))
        return found, epochs

    def rest(self, rank: int) -> list[SeriesSection]:
        """Return the sections from a rank on, the first of them cut there."""
        number = int(np.searchsorted(self.firsts, rank, side="right")) - 1
        head = self.sections[number].cut(rank - int(self.firsts[number]))
        return [*([head] if head is not None else []), *self.sections[number + 1 :]]

    def changed(self, rank: int, sections: Sequence[SeriesSection]) -> SourceSequence:
        """Return a sequence that is the same up to a rank, and then has other sections."""
        number = int(np.searchsorted(self.firsts, rank, side="right")) - 1
        items = rank - int(self.firsts[number])
        last = self.sections[number]
        head = [replace(last, end=last.place(items))] if items else []
        return SourceSequence([*self.sections[:number], *head, *sections])

    def section_at(self, rank: int) -> tuple[SeriesSection, int]:
        """Return the section of a rank, and the item of it."""
        number = int(np.searchsorted(self.firsts, rank, side="right")) - 1
        return self.sections[number], rank - int(self.firsts[number])
