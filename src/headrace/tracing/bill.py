"""`reading_plan`: what the steps of a run will read from its stores, counted in blocks and bytes before it begins.

Only indexes are read. The steps of a run and the bytes of each sample are known, so every read is known. If there are
too many steps, some of them are counted, spread evenly, and their numbers are scaled up.
"""

from __future__ import annotations

import os

import msgspec
import numpy as np

from headrace.config import whole
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.run import Run
from headrace.errors import ConfigError
from headrace.io.paths import parse_size
from headrace.plan.chaptered.sequence import NOTHING
from headrace.plan.dealing import dealt, home_nodes
from headrace.tracing.run_file import read_run_file
from headrace.tracing.sources import Sources

MOST_SAMPLES = 1 << 20
"""About how many samples are counted; of more, those of some steps are."""

_CHUNK = 1 << 17
_DEALT_STEPS = 32


class PlannedCache(msgspec.Struct, frozen=True, kw_only=True):
    """What caches keep that begin empty, and what leaves the store; the last two are estimates.

    Attributes:
        blocks: the blocks that a node reads, of which it may keep any.
        kept_blocks: those that its cache keeps.
        gets: the requests of all nodes: kept blocks once, and ranges of others.
        fetched_bytes: the bytes that leave the store.
    """

    blocks: int
    kept_blocks: int
    gets: int
    fetched_bytes: int


class ReadingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What steps of a run read, and what caches of blocks save.

    Attributes:
        run: the file of the run.
        first_step, end_step: the steps, up to ``end_step - 1``.
        counted_steps: how many of these were counted; numbers of reads are exact if all were.
        nodes: the number of nodes, each of which takes an equal part of each step, and has a cache.
        limit_bytes: the bytes of the cache of a node.
        block_bytes: the bytes of a block.
        stored_files, stored_blocks, stored_bytes: the files that hold the data of the run, their blocks and bytes.
        reads: how often a node reads a block in a step.
        read_bytes: the bytes that the samples of these steps use.
        cache: what the caches do if each node takes a part of each step in order.
        dealt: the same if samples are dealt to the nodes that hold their blocks, see `headrace.Dealing`; None for one
            node.
        foreign: with dealing, the part of the read bytes that a node reads of blocks of another home.
        notes: what the figures leave out.
    """

    run: str
    first_step: int
    end_step: int
    counted_steps: int
    nodes: int
    limit_bytes: int
    block_bytes: int
    stored_files: int
    stored_blocks: int
    stored_bytes: int
    reads: int
    read_bytes: int
    cache: PlannedCache
    dealt: PlannedCache | None = None
    foreign: float = 0.0
    notes: tuple[str, ...] = ()


def reading_plan(
    path: str | os.PathLike[str],
    *,
    limit: str | int,
    nodes: int = 1,
    steps: tuple[int, int] | None = None,
    block: str | int = "8MiB",
    most_samples: int = MOST_SAMPLES,
) -> ReadingPlan:
    """Return what steps of the last run in a file read, and what caches would do, without reading any data.

    Args:
        path: the file that `headrace.tracing.save_run` wrote.
        limit: the bytes of the cache of a node, such as ``"2TB"``.
        nodes: the number of nodes.
        steps: the first step and the one behind the last; by default the whole run.
        block: the bytes of a block.
        most_samples: about how many samples are counted.

    Raises:
        ConfigError: the run is framed, or has no end and no steps were given; it has no such steps; or it is not known
            where the samples of a source lie.
        StateError: the file is damaged.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, epochs=2)
        >>> headrace.tracing.save_run(run, "run.json")
        >>> plan = headrace.tracing.reading_plan("run.json", limit="1MB", nodes=2, block="4KiB")
        >>> plan.dealt.blocks < plan.cache.blocks < plan.reads
        True
    """
    file = read_run_file(path)
    saved = file.runs[-1]
    run = saved.run()
    limit_bytes, block_bytes = parse_size(limit, "limit"), parse_size(block, "block")
    nodes = whole(nodes, "nodes", least=1)
    sources = Sources(file)
    uses = BlockUses(run.plan, sources.placed(run), block_bytes=block_bytes)
    first, end = _span(os.fspath(path), run, steps, saved.first_step, saved.shift)
    counted = _counted(run, first - saved.shift, end - saved.shift, most_samples)
    scale = (end - first) / len(counted)
    found = _reads(run, uses, counted, nodes)
    reads, read_bytes = (round(scale * number) for number in found)
    foreign = _foreign(run, uses, counted, nodes) if nodes > 1 else 0.0

    def cached(blocks: int, foreign: float) -> PlannedCache:
        """Return what caches do, each of which may keep some blocks.

        In a full order a kept block is fetched once, and of any other one only what is read, each time. In an order in
        which blocks pass, each is fetched once for each time that the run goes through the data.
        """
        num_blocks, num_bytes = max(1, uses.table.num_blocks), max(1, uses.table.num_bytes)
        kept = min(limit_bytes // block_bytes, blocks, reads // nodes)
        whole, past = kept * nodes * 1.0, 1 - (1 - foreign) * kept / max(1, blocks)
        if run.order.passes_blocks and kept < blocks:
            whole, past = blocks * nodes * read_bytes / num_bytes, foreign
        return PlannedCache(
            blocks=blocks,
            kept_blocks=kept,
            gets=min(reads, round(whole + past * reads)),
            fetched_bytes=round(whole / num_blocks * num_bytes + past * read_bytes),
        )

    notes = list(sources.notes)
    if run.bucketing is not None:
        notes.append(
            f"samples change places within {run.bucketing.window_steps} steps by their lengths, which is left out here"
        )
    if len(file.runs) > 1:
        notes.append(f"the file holds {len(file.runs)} runs; this is the last one, from step {saved.first_step:,} on")
    return ReadingPlan(
        run=os.fspath(path),
        first_step=first,
        end_step=end,
        counted_steps=len(counted),
        nodes=nodes,
        limit_bytes=limit_bytes,
        block_bytes=block_bytes,
        stored_files=len(uses.files),
        stored_blocks=uses.table.num_blocks,
        stored_bytes=uses.table.num_bytes,
        reads=reads,
        read_bytes=read_bytes,
        cache=cached(uses.table.num_blocks, 0.0),
        dealt=cached(-(-uses.table.num_blocks // nodes), foreign) if nodes > 1 else None,
        foreign=foreign,
        notes=tuple(notes),
    )


def _span(path: str, run: Run, steps: tuple[int, int] | None, first_step: int, shift: int) -> tuple[int, int]:
    """Return the steps of the training to plan, the first one and the one behind the last."""
    last = None if run.num_steps is None else run.num_steps + shift
    if steps is None and last is None:
        raise ConfigError(f"{path}: the run has no end: say which steps, such as `steps=0:10000`")
    begin, end = (first_step, last) if steps is None else steps
    if end is None or not first_step <= begin < end or (last is not None and end > last):
        has = f"from {first_step:,} on" if last is None else f"{first_step:,} to {last - 1:,}"
        raise ConfigError(f"{path}: there are no steps {begin}:{end}: the run has the steps {has}")
    return begin, end


def _counted(run: Run, first: int, end: int, most_samples: int) -> list[int]:
    """Return the steps to count, spread evenly: all of them, if these have few samples."""
    num_samples = run.schedule.begin(end) - run.schedule.begin(first)
    most = max(1, (end - first) * most_samples // max(1, num_samples))
    steps: list[int] = np.unique(np.linspace(first, end - 1, min(most, end - first)).astype(np.int64)).tolist()
    return steps


def _reads(run: Run, uses: BlockUses, steps: list[int], nodes: int) -> tuple[int, int]:
    """Return how many blocks nodes read in steps, each once in a step, and how many bytes the samples use."""
    slots = np.concatenate([NOTHING, *(run.positions(step) for step in steps)])
    begins, ends = run.schedule.bounds(slots)
    if run.length is not None:
        ends = np.minimum(ends, run.length)
    takers = (slots - begins) * nodes // (ends - begins)
    positions = slots if run.draw is None else run.draw.positions(slots)
    is_first = np.diff(begins, prepend=-1) > 0
    readers = np.cumsum(is_first) * nodes + takers
    num_reads = num_bytes = 0
    # In whole steps, so that no block of a step is counted twice.
    firsts = np.flatnonzero(is_first)
    cuts = firsts[1:][np.diff(firsts // _CHUNK) > 0]
    for rows in np.split(np.arange(len(slots)), cuts):
        reads = uses.reads(positions[rows])
        num_reads += len(np.unique(readers[rows][reads.rows] * uses.table.num_blocks + reads.blocks))
        num_bytes += int(reads.used_bytes.sum())
    return num_reads, num_bytes


def _foreign(run: Run, uses: BlockUses, steps: list[int], nodes: int) -> float:
    """Return the part of the bytes of some steps, spread evenly, that are read of blocks of other homes if dealt."""
    total = foreign = 0
    for step in steps[:: -(-len(steps) // _DEALT_STEPS)]:
        positions = run.positions(step)
        slots = np.arange(len(positions)) * nodes // len(positions)
        takers = dealt(home_nodes(uses.homes(positions), nodes), slots, nodes)
        reads = uses.reads(positions)
        total += int(reads.used_bytes.sum())
        foreign += int(reads.used_bytes[home_nodes(reads.blocks, nodes) != takers[reads.rows]].sum())
    return foreign / total if total else 0.0
