"""`BlockUses`: which blocks of which files a run reads at its positions.

    positions -- lookup, locate, extents, FileBlocks.touched --> blocks, with the bytes of each that samples use

Nothing is read but indexes of stores. What a run will read, and which node is to read a sample, is planned with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from headrace.datasets.run import Run, by_source
from headrace.plan import IntArray, KeyArray, Lookup
from headrace.plan.chaptered.chapters import ChapteredPlan
from headrace.plan.chaptered.sequence import NOTHING
from headrace.plan.dealing import FileBlocks
from headrace.stores.store import Extents


class PlacedSamples(Protocol):
    """What has to be known of a dataset: where its samples lie."""

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the addresses of samples."""

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of the samples at some addresses."""


class BlockReads(NamedTuple):
    """The blocks that samples lie in, all (n,) int64.

    ``rows`` are those of the positions that were asked for, ``used_bytes`` how much of the block the sample has.
    """

    rows: IntArray
    blocks: IntArray
    used_bytes: IntArray


class BlockUses:
    """The blocks of all files of a run.

    Args:
        plan: the plan of the run.
        datasets: what is known of each dataset of the plan.
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
        plan: ChapteredPlan,
        datasets: Sequence[PlacedSamples],
        *,
        block_bytes: int,
        lookup: Callable[[IntArray], Lookup] | None = None,
    ) -> None:
        self._plan = plan
        self._datasets = tuple(datasets)
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
        self.files = tuple(numbers)
        self.table = FileBlocks(sizes, block_bytes=block_bytes)

    @classmethod
    def of_run(cls, run: Run, *, block_bytes: int) -> BlockUses:
        """Return the blocks of the files of a run."""
        return cls(run.plan, run.datasets, block_bytes=block_bytes, lookup=run.lookup)

    def reads(self, positions: IntArray) -> BlockReads:
        """Return which blocks the samples at (n,) int64 positions lie in."""
        found = self._lookup(positions)
        parts = [(NOTHING, NOTHING, NOTHING)]
        for source, mine in by_source(found.sources):
            numbers = np.arange(len(found.sources))[mine]
            keys = found.keys[mine] if self._plan.series[source].order.draws else None
            dataset = self._datasets[source]
            extents = dataset.extents(dataset.locate(found.indices[mine], keys))
            for files, part in zip(self._numbers[source], extents, strict=True):
                touched = self.table.touched(part.rows, files[part.files], part.begins, part.ends)
                parts.append((numbers[touched.rows], touched.blocks, touched.used_bytes))
        rows, blocks, used_bytes = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not len(rows):
            return BlockReads(rows, blocks, used_bytes)
        # Several ranges of a sample in the same block, such as pieces of a pack, are one read.
        order = np.lexsort((blocks, rows))
        rows, blocks, used_bytes = rows[order], blocks[order], used_bytes[order]
        firsts = np.append(0, np.flatnonzero((np.diff(rows) != 0) | (np.diff(blocks) != 0)) + 1)
        return BlockReads(rows[firsts], blocks[firsts], np.add.reduceat(used_bytes, firsts))

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
