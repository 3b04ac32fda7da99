"""Dealing the samples of a step to the nodes that hold them: which rank takes a sample is free, which step is not.

A *block* is a part of a file, of equal size except at the end of the file. The blocks of all files are numbered:

    blocks of 8 bytes, files of 20 and 8 bytes      file 0: blocks 0 1 2      file 1: block 3

Each node is the home of a share of the blocks of all files: block b has its home on node b modulo the number of nodes.
The samples of a step go to the homes of their blocks, in equal counts; what is too much for one node goes to those that
have too few:

    8 samples, 2 nodes of 2 ranks, micro-batches of 2      homes  0 0 1 0 0 1 0 1
    node 0 takes its first four, node 1 the others         node 0: 0 1 3 4     node 1: 2 5 6 7, of which 6 is foreign

With random homes, the count of a node strays from n = samples / nodes by the square root of n (1 - 1/nodes), and about
0.4 of that is too much or too few: 5 % of 512 samples over 8 nodes are foreign. So the caches of all nodes hold each
block once, and nearly all reads find it at hand.

Within a node, samples stay in their order, or are balanced by their costs over its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.balance import balanced, continued_order
from headrace.plan.cursor import StepPart
from headrace.plan.keys import IntArray


class Touched(NamedTuple):
    """The parts of ranges that lie in one block each; all (n,) int64.

    ``rows`` are those of the ranges, ``blocks`` the blocks, and ``used_bytes`` how many bytes of the block a range has.
    """

    rows: IntArray
    blocks: IntArray
    used_bytes: IntArray


class FileBlocks:
    """The blocks of some files, numbered through in the order of the files.

    Args:
        sizes: (files,) int64, the bytes of each file.
        block_bytes: the bytes of a block; the last block of a file may be shorter.

    Raises:
        ConfigError: a size is below 0, or ``block_bytes`` below 1.

    Example:
        >>> table = headrace.plan.dealing.FileBlocks([20, 8], block_bytes=8)
        >>> table.num_blocks
        4
        >>> zeros = np.zeros(1, dtype=np.int64)
        >>> table.touched(zeros, zeros, zeros + 6, zeros + 17).used_bytes.tolist()
        [2, 8, 1]
    """

    def __init__(self, sizes: Sequence[int] | IntArray, *, block_bytes: int) -> None:
        file_bytes: IntArray = np.asarray(sizes, dtype=np.int64)
        if block_bytes < 1 or (file_bytes < 0).any():
            raise ConfigError(f"blocks have at least 1 byte and files at least 0, found {block_bytes} and {sizes}")
        self.block_bytes = block_bytes
        self.num_bytes = int(file_bytes.sum())
        counts = -(-file_bytes // block_bytes)
        self.firsts: IntArray = np.append(np.zeros(1, dtype=np.int64), np.cumsum(counts))

    @property
    def num_blocks(self) -> int:
        """The number of blocks of all files."""
        return int(self.firsts[-1])

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
            return Touched(rows, self.firsts[files] + first, ends - begins)
        lines = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts) + first[lines]
        low = np.maximum(begins[lines], within * self.block_bytes)
        high = np.minimum(ends[lines], (within + 1) * self.block_bytes)
        return Touched(rows[lines], self.firsts[files[lines]] + within, high - low)


def ranks_of(offsets: IntArray, sizes: IntArray, *, world_size: int, micro_batch_size: int) -> IntArray:
    """Return (n,) int64: the rank that takes the slot at each offset in a step; as `taken_by`, for (n,) slots.

    ``sizes`` are the sizes of the steps, (n,) int64.
    """
    together = world_size * micro_batch_size
    micro_steps, within = np.divmod(offsets, together)
    left = sizes - micro_steps * together
    tails: IntArray = -(-(within + 1) * world_size // np.maximum(left, 1)) - 1
    return np.where(left >= together, within // micro_batch_size, tails)


def nodes_of(num_slots: int, *, world_size: int, micro_batch_size: int, per_node: int) -> IntArray:
    """Return (num_slots,) int64: the node that takes each slot of a step, or of the rest of one."""
    offsets = np.arange(num_slots, dtype=np.int64)
    sizes = np.full_like(offsets, num_slots)
    return ranks_of(offsets, sizes, world_size=world_size, micro_batch_size=micro_batch_size) // per_node


def home_nodes(blocks: IntArray, num_nodes: int) -> IntArray:
    """Return (n,) int64: the node that is the home of each block; -1 for -1, a sample without bytes."""
    return np.where(blocks < 0, -1, blocks % num_nodes)


def dealt(homes: IntArray, nodes: IntArray, num_nodes: int) -> IntArray:
    """Return (n,) int64: the node that each sample is dealt to; as few as possible go to another than their home.

    Args:
        homes: (n,) int64, the home of each sample, or -1 if it has none.
        nodes: (n,) int64, the node of each slot: a node gets as many samples as it has slots.
        num_nodes: the number of nodes.

    Raises:
        ConfigError: there are not as many slots as samples.

    Example:
        >>> nodes = np.array([0, 0, 1, 1, 0, 0, 1, 1])
        >>> headrace.plan.dealing.dealt(np.array([0, 0, 1, 0, 0, 1, 0, 1]), nodes, 2).tolist()
        [0, 0, 1, 0, 0, 1, 1, 1]
    """
    if len(homes) != len(nodes):
        raise ConfigError(f"there are {len(homes):,} samples for {len(nodes):,} slots; each slot takes one")
    room = np.bincount(nodes, minlength=num_nodes)
    by_home = np.argsort(homes, kind="stable")
    firsts = np.searchsorted(homes[by_home], np.arange(num_nodes))
    found = homes.copy()
    # The place of each sample among those of its home.
    places = np.empty_like(homes)
    ordered = homes[by_home]
    places[by_home] = np.arange(len(homes)) - np.where(ordered < 0, 0, firsts[ordered])
    is_foreign = (homes < 0) | (places >= room[homes])
    kept = np.bincount(homes[~is_foreign], minlength=num_nodes)
    found[is_foreign] = np.repeat(np.arange(num_nodes), room - kept)
    return found


def dealt_order(
    blocks: IntArray,
    costs: NDArray[Any] | None = None,
    taken: Sequence[StepPart] = (),
    *,
    first: IntArray | None = None,
    world_size: int,
    micro_batch_size: int,
    per_node: int,
) -> IntArray:
    """Return (num_samples,) int64: the sample, numbered within the step, that each slot takes; a permutation.

    As `step_order`, which balances all ranks alike. ``blocks`` is (num_samples,) int64, the block of each sample, -1
    for none. ``costs`` is (num_samples,), or None: by them samples are balanced within each node. Parts in ``taken``
    were dealt to nodes of their own ``per_node``, or were balanced if that is 0.

    Raises:
        ConfigError: ``per_node`` does not divide the number of ranks; or as `balanced`.
    """
    if per_node < 1 or world_size % per_node:
        raise ConfigError(f"nodes have {per_node} ranks, of {world_size}; every node has equally many")

    def assign(left: IntArray, part: StepPart) -> IntArray:
        if not part.per_node:
            if costs is None:
                return np.arange(len(left), dtype=np.int64)
            return balanced(costs[left], world_size=part.world_size, micro_batch_size=part.micro_batch_size).order
        return _dealt(blocks[left], None if costs is None else costs[left], part)

    part = StepPart(len(blocks), world_size, micro_batch_size, len(blocks), per_node)
    return continued_order(assign, taken, part, first=first)


def _dealt(blocks: IntArray, costs: NDArray[Any] | None, part: StepPart) -> IntArray:
    num_nodes = part.world_size // part.per_node
    options = {"micro_batch_size": part.micro_batch_size, "per_node": part.per_node}
    nodes = nodes_of(len(blocks), world_size=part.world_size, **options)
    takers = dealt(home_nodes(blocks, num_nodes), nodes, num_nodes)
    slots, samples = np.argsort(nodes, kind="stable"), np.argsort(takers, kind="stable")
    if costs is not None:
        for mine in np.split(np.arange(len(blocks)), np.cumsum(np.bincount(nodes, minlength=num_nodes))[:-1]):
            own = samples[mine]
            order = balanced(costs[own], world_size=part.per_node, micro_batch_size=part.micro_batch_size).order
            samples[mine] = own[order]
    order = np.empty(len(blocks), dtype=np.int64)
    order[slots] = samples
    return order
