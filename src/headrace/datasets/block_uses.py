"""`BlockUses`: which blocks of which files a run reads at its positions, and at which positions a block is read.

    positions -- lookup, locate, extents, FileBlocks.touched --> blocks, with the bytes of each that samples use
    blocks ---- bisection of extents, positions_of -----------> positions

Nothing is read but indexes of stores. What caches keep, what a run will cost, and which node is to read a sample is
planned with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from headrace.datasets.run import Run, by_source
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray, Lookup
from headrace.plan.caching import FileBlocks, Touched
from headrace.plan.caching.finding import positions_of
from headrace.plan.chaptered.chapters import AnyPlan
from headrace.plan.chaptered.sequence import NOTHING
from headrace.stores.store import Extents

_CHUNK = 1 << 16


class PlacedSamples(Protocol):
    """What has to be known of a dataset: where its samples lie."""

    @property
    def is_in_file_order(self) -> bool:
        """See `headrace.datasets.Dataset.is_in_file_order`."""

    @property
    def is_planned_anew(self) -> bool:
        """See `headrace.datasets.Dataset.is_planned_anew`."""

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the addresses of samples."""

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of the samples at some addresses."""


class BlockReads(NamedTuple):
    """The blocks that samples lie in, all (n,) int64.

    ``rows`` are those of the positions that were asked for, ``used_bytes`` how much of the block the sample has,
    between its bytes ``begins`` and ``ends``. ``epochs`` is the pass through its source that the sample belongs to.
    """

    rows: IntArray
    blocks: IntArray
    used_bytes: IntArray
    epochs: IntArray
    begins: IntArray
    ends: IntArray


class BlockPositions(NamedTuple):
    """The positions at which blocks are read, (n,) int64 each, sorted by the row of the block, then by position.

    ``used_bytes``, ``epochs``, ``begins`` and ``ends`` are those of the sample at the position, as in `BlockReads`.
    """

    rows: IntArray
    positions: IntArray
    used_bytes: IntArray
    epochs: IntArray
    begins: IntArray
    ends: IntArray


class BlockUses:
    """The blocks of all files of a run.

    Args:
        plan: the plan of the run.
        datasets: what is known of each dataset of the plan.
        is_keyed: whether the samples of a source depend on the keys of their epochs.
        block_bytes: bytes of a block.
        lookup: what comes at positions; by default what the plan says.

    Attributes:
        files: the path of each file.
        table: the blocks of these files.

    Raises:
        ConfigError: it is not known where the samples of a dataset lie.
        StoreError: a file is missing.
    """

    def __init__(
        self,
        plan: AnyPlan,
        datasets: Sequence[PlacedSamples],
        *,
        is_keyed: Callable[[int], bool],
        block_bytes: int,
        lookup: Callable[[IntArray], Lookup] | None = None,
    ) -> None:
        self._plan = plan
        self._datasets = tuple(datasets)
        self._is_keyed = is_keyed
        self._lookup = lookup or plan.lookup
        numbers: dict[str, int] = {}
        sizes: list[int] = []
        # For each dataset and each of its extents, the numbers of the files of the store.
        self._numbers: list[list[IntArray]] = []
        for leaf, dataset in zip(plan.leaves, self._datasets, strict=True):
            probe = dataset.extents(dataset.locate(np.array([leaf.first_sample], dtype=np.int64)))
            mine = []
            for part in probe:
                names = part.store.data_files
                for name, size in zip(names, part.store.data_sizes().tolist(), strict=True):
                    if numbers.setdefault(name, len(sizes)) == len(sizes):
                        sizes.append(size)
                mine.append(np.array([numbers[name] for name in names], dtype=np.int64))
            self._numbers.append(mine)
        self._inverted: dict[int, tuple[IntArray, IntArray]] = {}
        self.files = tuple(numbers)
        self.table = FileBlocks(sizes, block_bytes=block_bytes)

    @classmethod
    def of_run(cls, run: Run, *, block_bytes: int) -> BlockUses:
        """Return the blocks of the files of a run."""
        return cls(run.plan, run.datasets, is_keyed=run.is_keyed, block_bytes=block_bytes, lookup=run.lookup)

    def reads(self, positions: IntArray) -> BlockReads:
        """Return which blocks the samples at (n,) int64 positions lie in."""
        return self._reads(self._lookup(positions))

    def touched(self, positions: IntArray) -> Touched:
        """Return each range of which the samples at (n,) int64 positions are made, cut at the borders of blocks."""
        return self._touched(self._lookup(positions))

    def homes(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: the block that holds the most of the sample at each position, or the first of several.

        It is -1 for a sample without bytes.
        """
        reads = self.reads(positions)
        order = np.lexsort((reads.blocks, -reads.used_bytes, reads.rows))
        rows = reads.rows[order]
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        homes = np.full(len(positions), -1, dtype=np.int64)
        homes[rows[firsts]] = reads.blocks[order[firsts]]
        return homes

    def positions(self, blocks: IntArray, *, begin: int, end: int) -> BlockPositions:
        """Return at which of the positions ``begin`` to ``end - 1`` each of (n,) int64 blocks is read.

        ``blocks`` rise. Samples that were brought together by their lengths are found where the plan has them. For
        datasets whose samples are in the order of their files this costs a bisection and a lookup for each sample of
        the blocks; for packs the first call reads the plan of packs once.

        Raises:
            ConfigError: samples of a dataset are made of others in each epoch.
        """
        pairs = zip(self._plan.leaves, self._datasets, strict=True)
        if anew := [leaf.path or "." for leaf, dataset in pairs if dataset.is_planned_anew]:
            raise ConfigError(
                f"samples of {', '.join(anew)} are made of others in each epoch: which of them use a block is not known"
            )
        found = [NOTHING]
        for source in range(len(self._datasets)):
            samples = self._samples(source, blocks)
            if len(samples):
                found.append(positions_of(self._plan, source, samples, begin=begin, end=end))
        positions = np.unique(np.concatenate(found))
        reads = self._reads(self._plan.lookup(positions))
        places = np.searchsorted(blocks, reads.blocks)
        mine = np.append(blocks, -1)[places] == reads.blocks
        rows, at = places[mine], positions[reads.rows[mine]]
        order = np.lexsort((at, rows))
        columns = (reads.used_bytes, reads.epochs, reads.begins, reads.ends)
        return BlockPositions(rows[order], at[order], *(column[mine][order] for column in columns))

    @property
    def can_find(self) -> bool:
        """Whether `positions` is possible and cheap: all samples are in the order of their files, in every epoch."""
        sources = range(len(self._datasets))
        return all(self._is_ordered(source) and not self._datasets[source].is_planned_anew for source in sources)

    def _touched(self, found: Lookup) -> Touched:
        parts = [(NOTHING, NOTHING, NOTHING, NOTHING)]
        for source, mine in by_source(found.sources):
            numbers = np.arange(len(found.sources))[mine]
            keys = found.keys[mine] if self._is_keyed(source) else None
            for files, part in self._ranges(source, found.indices[mine], keys):
                touched = self.table.touched(part.rows, files, part.begins, part.ends)
                parts.append((numbers[touched.rows], touched.blocks, touched.begins, touched.used_bytes))
        return Touched(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _reads(self, found: Lookup) -> BlockReads:
        rows, blocks, begins, used_bytes = self._touched(found)
        if not len(rows):
            return BlockReads(rows, blocks, used_bytes, rows, begins, begins)
        # Several ranges of a sample in the same block, such as pieces of a pack, are one read.
        order = np.lexsort((blocks, rows))
        rows, blocks, begins, used_bytes = rows[order], blocks[order], begins[order], used_bytes[order]
        firsts = np.append(0, np.flatnonzero((np.diff(rows) != 0) | (np.diff(blocks) != 0)) + 1)
        ends = np.maximum.reduceat(begins + used_bytes, firsts)
        begins, used_bytes = np.minimum.reduceat(begins, firsts), np.add.reduceat(used_bytes, firsts)
        rows, blocks = rows[firsts], blocks[firsts]
        return BlockReads(rows, blocks, used_bytes, found.epochs[rows], begins, ends)

    def _ranges(self, source: int, indices: IntArray, keys: KeyArray | None) -> list[tuple[IntArray, Extents]]:
        """Return the ranges of samples, each with the numbers of their files in the table."""
        dataset = self._datasets[source]
        parts = dataset.extents(dataset.locate(indices, keys))
        return [(numbers[part.files], part) for numbers, part in zip(self._numbers[source], parts, strict=True)]

    def _is_ordered(self, source: int) -> bool:
        # A file that stands twice in a store, or in another order in another one, breaks the order.
        numbers = self._numbers[source]
        return self._datasets[source].is_in_file_order and all(bool((np.diff(one) > 0).all()) for one in numbers)

    def _samples(self, source: int, blocks: IntArray) -> IntArray:
        """Return the samples of a source, rising, that may lie in some blocks, which rise; and a few more."""
        if not self._is_ordered(source):
            order, samples = self._samples_of_blocks(source)
            first, last = np.searchsorted(order, blocks), np.searchsorted(order, blocks, side="right")
            return np.unique(samples[_joined_ranges(first, last)])
        found = [NOTHING]
        leaf = self._plan.leaves[source]
        for part in range(len(self._numbers[source])):
            first = self._bisected(source, part, blocks, ends=True)
            last = self._bisected(source, part, blocks + 1, ends=False)
            # A phase moves windows by less than one stride, so that the one before may reach the block.
            found.append(_joined_ranges(np.maximum(first - 1, leaf.first_sample), last))
        return np.unique(np.concatenate(found))

    def _bisected(self, source: int, part: int, blocks: IntArray, *, ends: bool) -> IntArray:
        """Return for each block the first sample that begins at its begin or later, or that ends behind it."""
        leaf = self._plan.leaves[source]
        targets = blocks * self.table.block_bytes
        low = np.full(len(blocks), leaf.first_sample, dtype=np.int64)
        high = np.full(len(blocks), leaf.first_sample + leaf.num_samples, dtype=np.int64)
        while len(open_ := np.flatnonzero(low < high)):
            middle = (low[open_] + high[open_]) // 2
            files, ranges = self._ranges(source, middle, None)[part]
            offsets = self.table.firsts[files] * self.table.block_bytes
            places = np.zeros(len(middle), dtype=np.int64)
            # Of several ranges of a sample the first begins it, and the last ends it.
            if ends:
                np.maximum.at(places, ranges.rows, offsets + ranges.ends)
                is_before = places <= targets[open_]
            else:
                places += np.iinfo(np.int64).max
                np.minimum.at(places, ranges.rows, offsets + ranges.begins)
                is_before = places < targets[open_]
            low[open_] = np.where(is_before, middle + 1, low[open_])
            high[open_] = np.where(is_before, high[open_], middle)
        return low

    def _samples_of_blocks(self, source: int) -> tuple[IntArray, IntArray]:
        """Return all blocks of a source, rising, and the sample of each."""
        if source not in self._inverted:
            leaf = self._plan.leaves[source]
            parts = [(NOTHING, NOTHING)]
            for first in range(leaf.first_sample, leaf.first_sample + leaf.num_samples, _CHUNK):
                last = min(first + _CHUNK, leaf.first_sample + leaf.num_samples)
                indices = np.arange(first, last, dtype=np.int64)
                for files, part in self._ranges(source, indices, None):
                    touched = self.table.touched(part.rows, files, part.begins, part.ends)
                    parts.append((touched.blocks, indices[touched.rows]))
            blocks, samples = (np.concatenate(column) for column in zip(*parts, strict=True))
            order = np.argsort(blocks, kind="stable")
            self._inverted[source] = blocks[order], samples[order]
        return self._inverted[source]


def _joined_ranges(firsts: IntArray, lasts: IntArray) -> IntArray:
    """Return the numbers of all ranges ``[first, last)``, one range after another."""
    counts = np.maximum(lasts - firsts, 0)
    ends = np.cumsum(counts)
    shift: IntArray = np.repeat(firsts - (ends - counts), counts)
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) + shift
