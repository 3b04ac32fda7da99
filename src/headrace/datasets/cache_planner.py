"""`CachePlanner` plans what the cache of a node keeps, in the order of the run, before its ranks read.

    spans, in order --> blocks, when the node reads each of them next --> BlockStore.plan: what is kept, and room for it
          |                                                                      |
          +--> threads and workers read them, many at a time: first they fetch what is reserved, all files at once
          |
          +--> done, in order --> BlockStore.plan unpins their blocks

So the order in which reads happen to go on changes nothing, and reading ahead fetches into the cache.

The first span of a stream does not wait for its blocks, of which it reads little. Its samples are fetched by
themselves, and its blocks are planned, and fetched, with the second span. So the first batch comes early, also after a
resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from time import monotonic
from typing import NamedTuple

import numpy as np

from headrace.cache import Cache
from headrace.cache.eviction import NEVER, BlockPart, MissingBlock, PlannedBlock, Wanted, block_name
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.run import Run
from headrace.errors import ConfigError
from headrace.plan import IntArray, Share
from headrace.plan.caching.dealing import home_nodes, ranks_of
from headrace.plan.caching.policies import BoolArray
from headrace.plan.chaptered.sequence import NOTHING
from headrace.plan.tree import MAX_POSITIONS

MOST_KEPT = 1 << 14
"""Blocks whose next uses are kept; of more, all are looked up again."""

_HORIZON_FACTOR = 4
_MOST_LOOKS = 8
_MOST_TOGETHER = 16
_LEAST_PART = 64
_LITTLE = 16


class CachedSpan:
    """A span of samples that is read through a cache. Once it is planned, it holds no more than is sent to a worker.

    Attributes:
        number: under which it was planned; None before that.
        missing: the blocks that are kept from then on and are not there, to be fetched before the span is read.
        parts: what its samples are made of, to be fetched if its blocks are not there; empty if those are planned.
    """

    __slots__ = ("missing", "number", "parts", "positions", "sizes", "steps")

    def __init__(self, positions: IntArray, steps: Sequence[int], sizes: Sequence[int]) -> None:
        self.positions = positions
        self.steps = steps
        self.sizes = sizes
        self.number: int | None = None
        self.missing: tuple[MissingBlock, ...] = ()
        self.parts: tuple[BlockPart, ...] = ()

    @contextmanager
    def fetched(self, cache: Cache) -> Iterator[None]:
        """Fetch what is missing, and hold the parts in memory until the end of the block, in which the span is read."""
        cache.fetch(self.missing)
        with cache.holding(self.parts):
            yield


Stream = deque[CachedSpan]
"""The spans that were added and not read yet."""


class _Coming(NamedTuple):
    """The steps at which a block is used before position ``until``, and between which of its bytes.

    All are (n,) int64, and ``steps`` rise.
    """

    steps: IntArray
    begins: IntArray
    ends: IntArray
    until: int

    def part(self, step: int, patience: float) -> tuple[int, int]:
        """Return between which bytes the block is read from a step on, until it is not used for so many steps."""
        first = int(np.searchsorted(self.steps, step))
        gaps = np.diff(self.steps[first:], prepend=step)
        waits = np.flatnonzero(gaps > patience)
        last = first + (int(waits[0]) if len(waits) else len(gaps))
        if first == last:
            return 1 << 62, 0
        return int(self.begins[first:last].min()), int(self.ends[first:last].max())


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
        self.cache = cache
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
        self._sent: Stream = deque()
        self._unplanned: Stream = deque()
        self._lock = RLock()
        self._done: deque[int] = deque()
        self._is_new = True
        self._first: Stream = deque()
        self._began: tuple[int, float] | None = None
        self._span_bytes = 0
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

    def begin(self) -> Stream:
        """Begin to plan a stream of spans; what was planned of the one before is not read any more."""
        with self._lock:
            self.finish(self._sent)
            self._sent = deque()
            self._is_new = True
            return self._sent

    @property
    def num_together(self) -> int:
        """How many spans are best planned together: a plan costs as much as a read, and pins what it holds.

        So it is only one if it is more than a small part of the cache.
        """
        if not self._span_bytes:
            return 1
        return max(1, min(_MOST_TOGETHER, self.cache.limit_bytes // _LEAST_PART // self._span_bytes))

    def add(self, positions: IntArray, steps: Sequence[int], sizes: Sequence[int]) -> CachedSpan:
        """Add the next span of the run: the positions of its samples, ``sizes[i]`` of them of step ``steps[i]``.

        Before it is read, `plan` follows; after that `done`, or `finish` for all that are left.
        """
        span = CachedSpan(positions, steps, sizes)
        self._sent.append(span)
        self._unplanned.append(span)
        return span

    def plan(self, span: CachedSpan) -> None:
        """Plan what the cache keeps of the blocks of a span, unless that was done, in any thread.

        Spans are planned in the order in which they were added, and some that follow together with this one.
        """
        if span.number is not None:
            return
        with self._lock:
            while span.number is None and self._unplanned:
                num_spans = 1 if self._is_new else min(len(self._unplanned), self.num_together)
                self._plan([self._unplanned.popleft() for _ in range(num_spans)])

    def _plan(self, together: list[CachedSpan]) -> None:
        number = self.cache.store.next_span()
        is_new, self._is_new = self._is_new, False
        if self.cache.policy == "plan":
            if is_new and (parts := self._parts(together[0].positions)):
                [span] = together
                self._first.append(CachedSpan(span.positions, span.steps, span.sizes))
                span.parts = parts
            else:
                self._plan_blocks(number, [*self._first, *together], len(self._first))
                self._first.clear()
        # The last one first: whoever finds one of them planned, and reads it, finds all that follow planned, too.
        for span in reversed(together):
            span.positions, span.steps, span.sizes = NOTHING, (), ()
            span.number = number

    def _plan_blocks(self, number: int, together: Sequence[CachedSpan], num_read: int) -> None:
        """Plan the blocks of spans, of which the first were read; the next one fetches what is missing of theirs."""
        positions = np.concatenate([span.positions for span in together])
        if not len(positions):
            return
        steps = np.concatenate([np.repeat(np.array(span.steps, np.int64), span.sizes) for span in together])
        span_ends = np.cumsum([len(span.positions) for span in together])
        missing: list[list[MissingBlock]] = [[] for _ in together]
        for block, first in self._planned(number, positions, steps, span_ends):
            missing[max(first, num_read)].append(block)
        for span, blocks in zip(together, missing, strict=True):
            span.missing = tuple(blocks)

    def _parts(self, positions: IntArray) -> tuple[BlockPart, ...]:
        """Return what samples are made of, sorted; nothing if that is more than a small part of their blocks."""
        _, blocks, begins, used_bytes = self._uses.touched(positions)
        table = self._uses.table
        if int(used_bytes.sum()) * _LITTLE > int(table.sizes(np.unique(blocks)).sum()):
            return ()
        files = table.files(blocks)
        numbers, ends = blocks - table.firsts[files], begins + used_bytes
        parts: list[BlockPart] = []
        for file, *part in sorted(zip(*(column.tolist() for column in (files, numbers, begins, ends)), strict=True)):
            one = BlockPart(self._uses.files[file], *part)
            if parts and parts[-1][:2] == one[:2] and one.begin <= parts[-1].end:
                parts[-1] = parts[-1]._replace(end=max(parts[-1].end, one.end))
            else:
                parts.append(one)
        return tuple(parts)

    def _planned(
        self, number: int, positions: IntArray, steps: IntArray, span_ends: IntArray
    ) -> Iterator[tuple[MissingBlock, int]]:
        """Plan spans under a number; yield each block that is missing, with the first of the spans that reads it."""
        reads = self._uses.reads(positions)
        read_steps = steps[reads.rows]
        self._span_bytes = -(-int(reads.used_bytes.sum()) // len(span_ends))
        # The last use of each block among these samples.
        order = np.lexsort((read_steps, reads.blocks))
        lasts = np.flatnonzero(np.diff(reads.blocks[order], append=-1))
        firsts = np.append(0, lasts[:-1] + 1)
        begins = np.minimum.reduceat(reads.begins[order], firsts).tolist()
        ends = np.maximum.reduceat(reads.ends[order], firsts).tolist()
        since = read_steps[order[firsts]].tolist()
        # The span in which each block comes first.
        spans = np.searchsorted(span_ends, reads.rows[order[firsts]], side="right").tolist()
        blocks = reads.blocks[order[lasts]]
        uses = self.next_uses(blocks, read_steps[order[lasts]]).tolist()
        table = self._uses.table
        files = table.files(blocks)
        within = (blocks - table.firsts[files]).tolist()
        sizes = table.sizes(blocks).tolist()
        planned: list[PlannedBlock] = []
        places: dict[str, tuple[MissingBlock, int]] = {}
        for row, (block, file, use) in enumerate(zip(blocks.tolist(), files.tolist(), uses, strict=True)):
            identity = self.cache.identity(self._uses.files[file])
            if identity is not None:
                wanted = Wanted(block_name(identity, within[row]), sizes[row], begins[row], ends[row])
                planned.append(PlannedBlock(wanted, use, partial(self._part, block, since[row])))
                places[wanted.name] = MissingBlock(self._uses.files[file], within[row], wanted), spans[row]
        step = int(steps[-1])
        # Other threads add to them meanwhile.
        done = [self._done.popleft() for _ in range(len(self._done))]
        reserved = self.cache.store.plan(self._name, step, self._step_s(step), span=number, blocks=planned, done=done)
        yield from (place for name, place in places.items() if name in reserved)

    def done(self) -> None:
        """Say that the first of the spans which are not done yet was read."""
        if self._sent:
            number = self._sent.popleft().number
            if number is not None and all(span.number != number for span in self._sent):
                self._done.append(number)

    def finish(self, stream: Stream) -> None:
        """Say that what was planned of a stream was read, or will not be, unless a new one has begun."""
        # A plan that a thread is making is complete before that, and none is made after it.
        with self._lock:
            if stream is not self._sent:
                return
            self._unplanned.clear()
            self._first.clear()
            planned = dict.fromkeys(span.number for span in self._sent if span.number is not None)
            if self.cache.policy == "plan" and (self._done or planned):
                self.cache.store.finish([*self._done, *planned])
            self._done.clear()
            self._sent.clear()

    def _part(self, block: int, step: int, patience: float) -> tuple[int, int]:
        """See `_Coming.part`; of what was not looked up, the whole block."""
        coming = self._coming.get(block)
        return (0, self.cache.block_bytes) if coming is None else coming.part(step, patience)

    def next_uses(self, blocks: IntArray, steps: IntArray) -> IntArray:
        """Return (n,) int64: the first step after each of (n,) steps in which this node uses the block, or ``NEVER``.

        ``blocks`` rise.
        """
        found = np.full(len(blocks), NEVER, dtype=np.int64)
        if not len(blocks):
            return found
        open_ = np.arange(len(blocks))
        if self._is_dealt:
            # Blocks of other homes are read past the cache.
            open_ = open_[home_nodes(blocks, self._num_nodes) == self._node]
        look = self._first_look
        # How much of a block is worth fetching is seen from its uses in the next half of an epoch, at least.
        seen = min(self._run.schedule.begin(int(steps.min())) + self._first_look // 2, self._end)
        for _ in range(_MOST_LOOKS):
            left = []
            for row in open_.tolist():
                coming = self._coming.get(int(blocks[row]))
                if coming is None or coming.until < seen:
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
        # From the step itself on, in which other ranks of the node may use the block.
        begin = min(self._run.schedule.begin(step), self._end)
        until = min(begin + num_positions, self._end)
        found = self._uses.positions(blocks, begin=begin, end=until)
        mine = self._is_here(found.positions)
        rows, steps = found.rows[mine], self._run.schedule.steps(found.positions[mine])
        bounds = np.searchsorted(rows, np.arange(len(blocks) + 1))
        if len(self._coming) + len(blocks) > MOST_KEPT:
            self._coming.clear()
        begins, ends = found.begins[mine], found.ends[mine]
        for row, block in enumerate(blocks.tolist()):
            first, last = bounds[row], bounds[row + 1]
            if first == last:
                self._coming[block] = _Coming(steps[:0], steps[:0], steps[:0], until)
                continue
            # Positions rise, and so do their steps.
            each = np.append(0, np.flatnonzero(np.diff(steps[first:last])) + 1)
            lows, highs = np.minimum.reduceat(begins[first:last], each), np.maximum.reduceat(ends[first:last], each)
            self._coming[block] = _Coming(steps[first:last][each], lows, highs, until)

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
