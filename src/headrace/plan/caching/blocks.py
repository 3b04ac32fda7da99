"""Files as blocks of equal size, and which blocks a run touches in which step.

    ranges of files                FileBlocks.touched     row, block, bytes of the block that are used
    (step, node, block, bytes)     Accesses.of            one access for each step, node and block

The blocks of all files are numbered through:

    blocks of 8 bytes, files of 20 and 8 bytes      file 0: blocks 0 1 2      file 1: block 3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray


class Touched(NamedTuple):
    """The parts of ranges that lie in one block each; all (n,) int64.

    ``rows`` are those of the ranges, ``blocks`` the blocks, ``begins`` where in the block the part begins, and
    ``used_bytes`` how many bytes of the block a range has.
    """

    rows: IntArray
    blocks: IntArray
    begins: IntArray
    used_bytes: IntArray


class FileBlocks:
    """The blocks of some files, numbered through in the order of the files.

    Args:
        sizes: (files,) int64, the bytes of each file.
        block_bytes: the bytes of a block; the last block of a file may be shorter.

    Raises:
        ConfigError: a size is below 0, or ``block_bytes`` below 1.

    Example:
        >>> table = headrace.plan.caching.FileBlocks([20, 8], block_bytes=8)
        >>> table.num_blocks, table.sizes(np.arange(4)).tolist()
        (4, [8, 8, 4, 8])
        >>> zeros = np.zeros(1, dtype=np.int64)
        >>> table.touched(zeros, zeros, zeros + 6, zeros + 17).used_bytes.tolist()
        [2, 8, 1]
    """

    def __init__(self, sizes: Sequence[int] | IntArray, *, block_bytes: int) -> None:
        self.file_bytes: IntArray = np.asarray(sizes, dtype=np.int64)
        if block_bytes < 1 or (self.file_bytes < 0).any():
            raise ConfigError(f"blocks have at least 1 byte and files at least 0, found {block_bytes} and {sizes}")
        self.block_bytes = block_bytes
        counts = -(-self.file_bytes // block_bytes)
        self.firsts: IntArray = np.append(np.zeros(1, dtype=np.int64), np.cumsum(counts))

    @property
    def num_blocks(self) -> int:
        """The number of blocks of all files."""
        return int(self.firsts[-1])

    @property
    def num_bytes(self) -> int:
        """The bytes of all files."""
        return int(self.file_bytes.sum())

    def files(self, blocks: IntArray) -> IntArray:
        """Return (n,) int64: the file of each block. O(log files) each."""
        return np.searchsorted(self.firsts, blocks, side="right").astype(np.int64) - 1

    def begins(self, blocks: IntArray) -> IntArray:
        """Return (n,) int64: the byte of its file where each block begins."""
        return (blocks - self.firsts[self.files(blocks)]) * self.block_bytes

    def sizes(self, blocks: IntArray) -> IntArray:
        """Return (n,) int64: the bytes of each block."""
        found: IntArray = np.minimum(self.block_bytes, self.file_bytes[self.files(blocks)] - self.begins(blocks))
        return found

    def touched(self, rows: IntArray, files: IntArray, begins: IntArray, ends: IntArray) -> Touched:
        """Cut ranges ``[begins, ends)`` of files at the borders of blocks; empty ranges touch no block.

        All arguments are (n,) int64.
        """
        kept = ends > begins
        if not kept.all():
            rows, files, begins, ends = rows[kept], files[kept], begins[kept], ends[kept]
        first, last = begins // self.block_bytes, (ends - 1) // self.block_bytes
        counts = last - first + 1
        if (counts == 1).all():
            return Touched(rows, self.firsts[files] + first, begins - first * self.block_bytes, ends - begins)
        lines = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts) + first[lines]
        low = np.maximum(begins[lines], within * self.block_bytes)
        high = np.minimum(ends[lines], (within + 1) * self.block_bytes)
        return Touched(rows[lines], self.firsts[files[lines]] + within, low - within * self.block_bytes, high - low)


class Accesses(NamedTuple):
    """What nodes read, one row for each step, node and block; all (n,) int64, sorted by step, then node, then block.

    ``steps``, ``nodes`` and ``blocks`` say who reads what and when, ``used_bytes`` how much of the block the samples
    use, and ``epochs`` the pass through its source in which it is first read in that step.
    """

    steps: IntArray
    nodes: IntArray
    blocks: IntArray
    used_bytes: IntArray
    epochs: IntArray

    @classmethod
    def of(
        cls,
        steps: IntArray,
        nodes: IntArray,
        blocks: IntArray,
        used_bytes: IntArray,
        epochs: IntArray,
        *,
        table: FileBlocks,
    ) -> Accesses:
        """Bring what samples touch together: each block once for each step and node.

        Used bytes are added up, to at most the size of the block, since samples may overlap.
        """
        order = np.lexsort((blocks, nodes, steps))
        columns = [one[order] for one in (steps, nodes, blocks, used_bytes, epochs)]
        steps, nodes, blocks, used_bytes, epochs = columns
        if not len(steps):
            return cls(steps, nodes, blocks, used_bytes, epochs)
        differs = (np.diff(steps) != 0) | (np.diff(nodes) != 0) | (np.diff(blocks) != 0)
        firsts = np.append(0, np.flatnonzero(differs) + 1)
        used = np.minimum(np.add.reduceat(used_bytes, firsts), table.sizes(blocks[firsts]))
        return cls(steps[firsts], nodes[firsts], blocks[firsts], used, np.minimum.reduceat(epochs, firsts))

    def rows(self, rows: IntArray | slice) -> Accesses:
        """Return some of the accesses."""
        return Accesses(*(column[rows] for column in self))


def next_uses(blocks: IntArray) -> IntArray:
    """Return (n,) int64: for each access of a sequence the place of the next one to the same block, or n if none is.

    ``blocks`` is (n,) int64, in the order of the accesses. O(n log n).

    Example:
        >>> headrace.plan.caching.next_uses(np.array([7, 5, 7, 7])).tolist()
        [2, 4, 3, 4]
    """
    order = np.argsort(blocks, kind="stable")
    found = np.full(len(blocks), len(blocks), dtype=np.int64)
    same = np.flatnonzero(blocks[order[1:]] == blocks[order[:-1]])
    found[order[same]] = order[same + 1]
    return found
