"""`reading_plan`: what the steps of a run will read from its stores, and what caches would save, before it begins.

Only indexes are read. The steps of a run and the bytes of each sample are known, so every read is known, and a cache
can be simulated exactly. If there are too many reads, those of a sample of the blocks are (see
`headrace.plan.caching`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from headrace.config import whole
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.run import Run
from headrace.errors import ConfigError
from headrace.io.sizes import parse_size
from headrace.plan import IntArray
from headrace.plan.caching import POLICIES, Accesses, CacheForecast, Policy, forecast, sampled
from headrace.plan.caching.dealing import dealt, home_nodes
from headrace.plan.chaptered.sequence import NOTHING
from headrace.tracing.run_file import read_run_file
from headrace.tracing.sources import Sources

BLOCK_BYTES = 8 << 20
"""The default size of a block."""

MOST_READS = 1 << 20
"""About how many reads are followed; of more, those of a sample of the blocks are."""

_CHUNK = 1 << 17
_BLOCKS_AT_ONCE = 256
_PROBED = 4096
_DEALT_STEPS = 32
_WASTEFUL = 2
"""If the plan fetches more than so many times the bytes that are used, the report says what to do."""
_FEW = 0.1
"""If a smaller part of the blocks is followed, their positions are looked up; otherwise all positions are scanned."""

Columns = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]
"""Those of `Accesses`."""


class PlannedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The reads of one epoch, counted in passes through each source, and the part of them that hit."""

    epoch: int
    reads: int
    hit_rate: float


class PlannedCache(msgspec.Struct, frozen=True, kw_only=True):
    """What the caches of all nodes do under one policy.

    Attributes:
        policy: ``plan``, ``pin``, ``lru`` or ``fifo``.
        hit_rate: the part of the reads that find their block in the cache.
        hit_rate_error: its standard error; 0 if it is exact.
        gets: the requests to the store.
        fetched_bytes: the bytes that leave the store.
        fetched_bytes_error: the standard error; 0 if it is exact.
        peak_step_bytes: the bytes that leave the store in a step, on average over the busiest hundredth of the steps.
        epochs: hit rates by epoch.
    """

    policy: Policy
    hit_rate: float
    hit_rate_error: float
    gets: int
    fetched_bytes: int
    fetched_bytes_error: int
    peak_step_bytes: int
    epochs: tuple[PlannedEpoch, ...]


class ReadingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What steps of a run read, and what caches of blocks save.

    Attributes:
        run: the file of the run.
        first_step, end_step: the steps, up to ``end_step - 1``.
        nodes: the number of nodes, each of which takes an equal part of each step, and has a cache.
        limit_bytes: the bytes of the cache of a node.
        block_bytes: the bytes of a block.
        stored_files, stored_bytes: the files that hold the data of the run, and their bytes.
        reads: how often a node reads a block in a step.
        read_bytes: the bytes that the samples of these steps use.
        followed: the part of the blocks whose reads were followed; 1 if the figures are exact.
        caches: the policies side by side, if each node takes a part of each step in order. They keep whole blocks; a
            run by ``"plan"`` keeps only the part of a block that is read in time, and fetches fewer bytes.
        dealt: the same if samples are dealt to the nodes that hold their blocks, see `headrace.Dealing`; empty for one
            node.
        foreign: with dealing, the part of the read bytes that a node reads of blocks of another home.
        notes: what the figures leave out.
    """

    run: str
    first_step: int
    end_step: int
    nodes: int
    limit_bytes: int
    block_bytes: int
    stored_files: int
    stored_bytes: int
    reads: int
    read_bytes: int
    followed: float
    caches: tuple[PlannedCache, ...]
    dealt: tuple[PlannedCache, ...] = ()
    foreign: float = 0.0
    notes: tuple[str, ...] = ()


def reading_plan(
    path: str | os.PathLike[str],
    *,
    limit: str | int,
    nodes: int = 1,
    steps: tuple[int, int] | None = None,
    block: str | int = BLOCK_BYTES,
    most_reads: int = MOST_READS,
) -> ReadingPlan:
    """Return what steps of the last run in a file read, and what caches would do, without reading any data.

    Args:
        path: the file that `headrace.tracing.save_run` wrote.
        limit: the bytes of the cache of a node, such as ``"2TB"``.
        nodes: the number of nodes.
        steps: the first step and the one behind the last; by default the whole run.
        block: the bytes of a block.
        most_reads: about how many reads are followed one by one.

    Raises:
        ConfigError: the run is framed, or has no end and no steps were given; it has no such steps; or it is not known
            where the samples of a source lie.
        StateError: the file is damaged.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, epochs=2)
        >>> headrace.tracing.save_run(run, "run.json")
        >>> plan = headrace.tracing.reading_plan("run.json", limit="1MB", nodes=2, block="4KiB")
        >>> [cache.policy for cache in plan.caches if cache.hit_rate > 0.3]
        ['plan', 'pin', 'lru', 'fifo']
    """
    file = read_run_file(path)
    saved = file.runs[-1]
    if saved.lanes is not None:
        raise ConfigError(
            f"{path}: the run is framed, so that the step of a sample is only known when it is fed: what it reads"
            " cannot be planned"
        )
    limit_bytes, block_bytes = parse_size(limit, "limit"), parse_size(block, "block")
    if whole(nodes, "nodes") < 1:
        raise ConfigError(f"nodes is {nodes}; it is at least 1")
    run = saved.run()
    sources = Sources(file)
    uses = BlockUses(run.plan, sources.placed(run), is_keyed=run.is_keyed, block_bytes=block_bytes)
    begin, end, span = _span(os.fspath(path), run, steps, saved.first_step, saved.shift)
    rate = _rate(uses, begin, end, most_reads)
    columns = _Followed(run, uses, nodes, rate).columns(begin, end)
    accesses = Accesses.of(*columns, table=uses.table)
    options: dict[str, Any] = {"capacity": limit_bytes // block_bytes, "rate": rate}
    options |= {"first_step": run.schedule.step_of(begin), "num_steps": span[1] - span[0]}
    caches = [_planned(forecast(accesses, uses.table, policy=policy, **options)) for policy in POLICIES]
    by_home: list[PlannedCache] = []
    foreign = 0.0
    if nodes > 1:
        foreign = _foreign(run, uses, nodes, begin, end)
        at, _, blocks, *rest = columns
        at_home = Accesses.of(at, home_nodes(blocks, nodes), blocks, *rest, table=uses.table)
        found = [forecast(at_home, uses.table, policy=policy, **options) for policy in POLICIES]
        by_home = [_with_foreign(one, foreign) for one in found]
    notes = list(sources.notes)
    if run.bucketing is not None:
        notes.append(
            f"samples change places within {run.bucketing.window_steps} steps by their lengths, which is left out here"
        )
    best = min((by_home or caches)[:1] + caches[:1], key=lambda one: one.fetched_bytes)
    if best.fetched_bytes > _WASTEFUL * max(1, round(int(accesses.used_bytes.sum()) / rate)):
        notes.append(
            "plan fetches whole blocks of which little is used before they go: take smaller blocks, an order that reads"
            " neighbours together (kind='blocks' or 'shards'), dealing, a larger cache, or pin"
        )
    if len(file.runs) > 1:
        notes.append(f"the file holds {len(file.runs)} runs; this is the last one, from step {saved.first_step:,} on")
    return ReadingPlan(
        run=os.fspath(path),
        first_step=span[0],
        end_step=span[1],
        nodes=nodes,
        limit_bytes=limit_bytes,
        block_bytes=block_bytes,
        stored_files=len(uses.files),
        stored_bytes=uses.table.num_bytes,
        reads=round(len(accesses.steps) / rate),
        read_bytes=round(int(accesses.used_bytes.sum()) / rate),
        followed=rate,
        caches=tuple(caches),
        dealt=tuple(by_home),
        foreign=foreign,
        notes=tuple(notes),
    )


def _span(
    path: str, run: Run, steps: tuple[int, int] | None, first_step: int, shift: int
) -> tuple[int, int, tuple[int, int]]:
    """Return the positions ``[begin, end)`` of some steps of the training, and these steps."""
    last = None if run.num_steps is None else run.num_steps + shift
    if steps is None and last is None:
        raise ConfigError(f"{path}: the run has no end: say which steps, such as `steps=0:10000`")
    begin, end = (first_step, last) if steps is None else steps
    if end is None or not first_step <= begin < end or (last is not None and end > last):
        has = f"from {first_step:,} on" if last is None else f"{first_step:,} to {last - 1:,}"
        raise ConfigError(f"{path}: there are no steps {begin}:{end}: the run has the steps {has}")
    bounds = [run.schedule.begin(step - shift) for step in (begin, end)]
    return bounds[0], bounds[1] if run.length is None else min(bounds[1], run.length), (begin, end)


def _rate(uses: BlockUses, begin: int, end: int, most_reads: int) -> float:
    """Return the part of the blocks to follow, so that there are about ``most_reads`` reads, or all of them."""
    probe = np.unique(np.linspace(begin, end - 1, min(_PROBED, end - begin)).astype(np.int64))
    reads = len(uses.reads(probe).rows) / len(probe) * (end - begin)
    return 1.0 if reads <= most_reads else most_reads / reads


class _Followed:
    """Follows the reads of the blocks of a sample: forwards, or from the blocks to their positions if they are few."""

    def __init__(self, run: Run, uses: BlockUses, nodes: int, rate: float) -> None:
        self._run = run
        self._uses = uses
        self._nodes = nodes
        self._rate = rate

    def columns(self, begin: int, end: int) -> Columns:
        """Return step, node, block, used bytes and epoch of each read at some positions, those of whole steps."""
        is_few = self._rate < _FEW and self._uses.can_find and self._run.buckets is None
        parts = list(self._found(begin, end) if is_few else self._scanned(begin, end))
        parts.append((NOTHING,) * 5)
        steps, nodes, blocks, used_bytes, epochs = (np.concatenate(column) for column in zip(*parts, strict=True))
        return steps, nodes, blocks, used_bytes, epochs

    def _scanned(self, begin: int, end: int) -> Iterator[Columns]:
        for first in range(begin, end, _CHUNK):
            positions = np.arange(first, min(first + _CHUNK, end), dtype=np.int64)
            reads = self._uses.reads(positions)
            mine = sampled(reads.blocks, self._rate)
            columns = (reads.blocks, reads.used_bytes, reads.epochs)
            yield self._columns(positions[reads.rows[mine]], *(one[mine] for one in columns))

    def _found(self, begin: int, end: int) -> Iterator[Columns]:
        blocks = np.arange(self._uses.table.num_blocks, dtype=np.int64)
        blocks = blocks[sampled(blocks, self._rate)]
        for some in np.array_split(blocks, -(-len(blocks) // _BLOCKS_AT_ONCE)) if len(blocks) else ():
            found = self._uses.positions(some, begin=begin, end=end)
            yield self._columns(found.positions, some[found.rows], found.used_bytes, found.epochs)

    def _columns(self, positions: IntArray, blocks: IntArray, used_bytes: IntArray, epochs: IntArray) -> Columns:
        draw, schedule = self._run.draw, self._run.schedule
        slots = positions if draw is None else draw.slots(positions)
        begins, ends = schedule.bounds(slots)
        if self._run.length is not None:
            ends = np.minimum(ends, self._run.length)
        nodes = (slots - begins) * self._nodes // (ends - begins)
        return schedule.steps(slots), nodes, blocks, used_bytes, epochs


def _foreign(run: Run, uses: BlockUses, nodes: int, begin: int, end: int) -> float:
    """Return the part of the bytes of some steps, spread evenly, that are read of blocks of other homes if dealt."""
    first, last = run.schedule.step_of(begin), run.schedule.step_of(end - 1)
    total = foreign = 0
    for step in np.unique(np.linspace(first, last, min(_DEALT_STEPS, last - first + 1)).astype(np.int64)).tolist():
        positions = run.positions(step)
        slots = np.arange(len(positions)) * nodes // len(positions)
        takers = dealt(home_nodes(uses.homes(positions), nodes), slots, nodes)
        reads = uses.reads(positions)
        total += int(reads.used_bytes.sum())
        foreign += int(reads.used_bytes[home_nodes(reads.blocks, nodes) != takers[reads.rows]].sum())
    return foreign / total if total else 0.0


def _with_foreign(found: CacheForecast, foreign: float) -> PlannedCache:
    """Return the figures of caches of home blocks with the foreign reads, which are ranged GETs past the caches."""
    cache = _planned(found)
    lost = foreign * cache.hit_rate
    epochs = tuple(msgspec.structs.replace(one, hit_rate=one.hit_rate * (1 - foreign)) for one in cache.epochs)
    return msgspec.structs.replace(
        cache,
        hit_rate=cache.hit_rate - lost,
        gets=cache.gets + round(lost * found.num_accesses),
        fetched_bytes=cache.fetched_bytes + round(lost * found.used_bytes),
        epochs=epochs,
    )


def _planned(found: CacheForecast) -> PlannedCache:
    epochs = tuple(
        PlannedEpoch(epoch=one.epoch, reads=round(one.num_accesses), hit_rate=one.num_hits / one.num_accesses)
        for one in found.epochs
    )
    return PlannedCache(
        policy=found.policy,
        hit_rate=found.hit_rate,
        hit_rate_error=found.hit_rate_error,
        gets=round(found.num_fetches),
        fetched_bytes=round(found.fetched_bytes),
        fetched_bytes_error=round(found.fetched_bytes_error),
        peak_step_bytes=round(found.peak_step_bytes),
        epochs=epochs,
    )
