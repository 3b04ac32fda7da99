"""`CachePlanner` tells the cache of a node when its ranks read each block next, just before they read it."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

import numpy as np

from headrace.cache import Cache
from headrace.cache.block_store import NEVER, block_name
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.run import Run
from headrace.errors import ConfigError
from headrace.plan import IntArray, Share
from headrace.plan.caching.dealing import home_nodes, ranks_of
from headrace.plan.caching.policies import BoolArray
from headrace.plan.tree import MAX_POSITIONS

MOST_KEPT = 1 << 14
"""Blocks whose next uses are kept; of more, all are looked up again."""

_HORIZON_FACTOR = 4
_MOST_LOOKS = 8


class _Coming(NamedTuple):
    """The steps at which a block is used before position ``until``, (n,) int64, rising."""

    steps: IntArray
    until: int


class CachePlanner:
    """Knows when the ranks of a node read each block of a run.

    The next use of a block is found from the block: which samples lie in it, and at which positions these come. So it
    costs some lookups a block and epoch, however long the run is.

    Args:
        run: the run.
        share: the part of this rank.
        cache: the cache of the node, through which the data of the run are read.
        per_node: the number of ranks on each node.
        dealt: the blocks by which samples are dealt to nodes, if they are. A node then keeps the blocks that it is the
            home of.
        is_balanced: whether the samples of a step are assigned by cost. Without dealing it is then not known which node
            reads a sample, so that all uses count.

    Raises:
        ConfigError: it is not known where the samples of a dataset lie, or which of them use a block in another epoch;
            or samples are dealt by other blocks than those of the cache.
    """

    def __init__(
        self,
        run: Run,
        share: Share,
        cache: Cache,
        *,
        per_node: int,
        dealt: BlockUses | None = None,
        is_balanced: bool = False,
    ) -> None:
        self._run = run
        self._share = share
        self._cache = cache
        if dealt is not None and dealt.table.block_bytes != cache.block_bytes:
            raise ConfigError(
                f"samples are dealt by blocks of {dealt.table.block_bytes:,} bytes, and the cache has blocks of"
                f" {cache.block_bytes:,}: pass Dealing(block={cache.block_bytes})"
            )
        self._per_node = per_node
        self._num_nodes = share.world_size // per_node
        self._node = share.rank // per_node
        self._is_dealt = dealt is not None
        self._counts_all = self._num_nodes == 1 or (is_balanced and dealt is None)
        self._name = run.recipe.digest().hex()[:32]
        self._end = MAX_POSITIONS if run.length is None else run.length
        self._first_look = sum(leaf.num_samples for leaf in run.plan.leaves)
        self._coming: dict[int, _Coming] = {}
        self._began: tuple[int, float] | None = None
        if cache.policy != "plan":
            return
        try:
            self._uses = BlockUses.of_run(run, block_bytes=cache.block_bytes) if dealt is None else dealt
            # What cannot be found is refused here, before anything is read.
            self._uses.positions(np.zeros(1, dtype=np.int64), begin=0, end=0)
        except ConfigError as error:
            raise ConfigError(
                f"{error}. These data are read through the cache {cache.folder}, which plans what it keeps: make it"
                " with policy='pin', which keeps the first blocks that come"
            ) from error

    def tell(self, positions: IntArray, steps: IntArray) -> None:
        """Tell the cache when the blocks of samples are used after that.

        Both arguments are (n,) int64: the positions of the samples that are read next, and their steps, which rise.
        """
        if not len(positions) or self._cache.policy != "plan":
            return
        reads = self._uses.reads(positions)
        read_steps = steps[reads.rows]
        # The last use of each block among these samples.
        order = np.lexsort((read_steps, reads.blocks))
        lasts = np.flatnonzero(np.diff(reads.blocks[order], append=-1))
        blocks = reads.blocks[order[lasts]]
        uses = self.next_uses(blocks, read_steps[order[lasts]])
        table = self._uses.table
        files = table.files(blocks)
        numbers = (blocks - table.firsts[files]).tolist()
        told = {}
        for file, number, use in zip(files.tolist(), numbers, uses.tolist(), strict=True):
            identity = self._cache.identity(self._uses.files[file])
            if identity is not None:
                told[block_name(identity, number)] = use
        step = int(steps[-1])
        self._cache.expect(self._name, step, self._step_s(step), told)

    def next_uses(self, blocks: IntArray, steps: IntArray) -> IntArray:
        """Return (n,) int64: the first step after each of (n,) steps in which this node uses the block, or ``NEVER``.

        ``blocks`` rise.
        """
        found = np.full(len(blocks), NEVER, dtype=np.int64)
        open_ = np.arange(len(blocks))
        if self._is_dealt:
            # Blocks of other homes are read past the cache.
            open_ = open_[home_nodes(blocks, self._num_nodes) == self._node]
        look = self._first_look
        for _ in range(_MOST_LOOKS):
            left = []
            for row in open_.tolist():
                coming = self._coming.get(int(blocks[row]))
                if coming is None:
                    left.append(row)
                    continue
                at = int(np.searchsorted(coming.steps, steps[row], side="right"))
                if at < len(coming.steps):
                    found[row] = coming.steps[at]
                elif coming.until < self._end:
                    left.append(row)
            if not left:
                break
            open_ = np.array(left, dtype=np.int64)
            self._look(blocks[open_], int(steps[open_].min()), look)
            look *= _HORIZON_FACTOR
        return found

    def _look(self, blocks: IntArray, step: int, num_positions: int) -> None:
        begin = min(self._run.schedule.begin(step + 1), self._end)
        until = min(begin + num_positions, self._end)
        found = self._uses.positions(blocks, begin=begin, end=until)
        mine = self._is_here(found.positions)
        rows, steps = found.rows[mine], self._run.schedule.steps(found.positions[mine])
        bounds = np.searchsorted(rows, np.arange(len(blocks) + 1))
        if len(self._coming) + len(blocks) > MOST_KEPT:
            self._coming.clear()
        for row, block in enumerate(blocks.tolist()):
            self._coming[block] = _Coming(np.unique(steps[bounds[row] : bounds[row + 1]]), until)

    def _is_here(self, positions: IntArray) -> BoolArray:
        """Return (n,) bool: whether a rank of this node takes the sample at each position."""
        if self._counts_all:
            return np.ones(len(positions), dtype=np.bool_)
        if self._is_dealt:
            # All but the few that are too many for their home.
            is_home: BoolArray = home_nodes(self._uses.homes(positions), self._num_nodes) == self._node
            return is_home
        draw = self._run.draw
        slots = positions if draw is None else draw.slots(positions)
        begins, ends = self._run.schedule.bounds(slots)
        ends = np.minimum(ends, self._end)
        share = self._share
        ranks = ranks_of(
            slots - begins, ends - begins, world_size=share.world_size, micro_batch_size=share.micro_batch_size
        )
        is_here: BoolArray = ranks // self._per_node == self._node
        return is_here

    def _step_s(self, step: int) -> float:
        """Return about how long a step takes, by the spans so far."""
        now = monotonic()
        if self._began is None or step < self._began[0]:
            self._began = step, now
        first, since = self._began
        return (now - since) / (step - first) if step > first else 1.0
