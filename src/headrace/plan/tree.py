"""The central function of the plan: position -> (source, epoch, sample index), and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray, derive_array, source_key
from headrace.plan.nodes import Declared, Leaf, Node, leaf_counts, leaves
from headrace.plan.order import Order
from headrace.plan.schedule import BatchSchedule

MAX_POSITIONS = 1 << 62


class Lookup(NamedTuple):
    """The samples at some positions; all arrays are (n,), in the order of the positions.

    ``sources`` int64: the numbers of the leaves. ``epochs`` int64: how many passes through the source are complete.
    ``indices`` int64: the sample within the source's dataset. ``keys`` uint64: the key of (seed, path, epoch), from
    which everything else that is random in a sample is drawn.
    """

    sources: IntArray
    epochs: IntArray
    indices: IntArray
    keys: KeyArray


class SampleTimes(NamedTuple):
    """The positions at which a sample comes, (n,) int64, rising, and the epoch of its source at each, (n,) int64."""

    positions: IntArray
    epochs: IntArray


def run_length(
    root: Declared, schedule: BatchSchedule, *, epochs: int | None, samples: int | None, drop_last: bool
) -> int | None:
    """Return how many samples a run feeds: ``epochs`` passes, or ``samples``; None for a run without an end.

    If neither is given, a mix that ends is fed for one pass, and all else goes on without end. With ``drop_last``,
    samples of a last step that is short are left out.

    Raises:
        ConfigError: both are given, the plan has no end and ``epochs`` is given, or no samples are left.
    """
    if epochs is not None and samples is not None:
        raise ConfigError("epochs and samples are both given: a run is measured in one of them")
    one_pass = root.num_samples
    if epochs is not None and one_pass is None:
        raise ConfigError("an endless blend has no epochs: pass samples, or give the blend an end")
    if epochs is not None and one_pass is not None:
        length = epochs * one_pass
    elif samples is not None:
        length = samples
    elif one_pass is not None and not isinstance(root, Leaf):
        length = one_pass
    else:
        return None
    if drop_last:
        length = schedule.begin(schedule.step_of(length))
    if length < 1:
        raise ConfigError(
            f"a run of {epochs if samples is None else samples} "
            f"{'epochs' if samples is None else 'samples'} with drop_last={drop_last} has no samples to feed"
        )
    return length


class Plan:
    """A tree of sources read in an order: a pure function of the position.

    Construction is O(sources); a lookup is O(log sources) and about 0.1 to 0.5 us a position in bulk. No part of the
    plan grows with the number of samples.

    Example:
        >>> plan = headrace.plan.Plan(headrace.plan.Leaf("web", 1000), headrace.Order(seed=1))
        >>> found = plan.lookup(np.arange(2000))
        >>> found.epochs[[0, 1999]].tolist(), len(set(found.indices[:1000].tolist()))
        ([0, 1], 1000)
        >>> times = plan.find(0, 17, begin=0, end=2000)
        >>> found.indices[times.positions].tolist()
        [17, 17]
    """

    def __init__(self, root: Node, order: Order) -> None:
        self.root = root
        self.order = order
        self.leaves = tuple(leaves(root))
        paths = [leaf.path for leaf in self.leaves]
        if len(set(paths)) != len(paths):
            raise ConfigError(f"two sources of the blend have the same path; the paths are {sorted(paths)}")
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._keys = [source_key(order.seed, leaf.path, "order") for leaf in self.leaves]

    def lookup(self, positions: IntArray) -> Lookup:
        """Return source, epoch and sample index at each of (n,) int64 ``positions``, 0 <= position < 2^62."""
        if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= MAX_POSITIONS):
            raise ConfigError(f"positions run from 0 to 2^62 - 1, found {positions.min()} .. {positions.max()}")
        if isinstance(self.root, Leaf):
            return Lookup(np.zeros_like(positions), *self._within(self.root, 0, positions))
        result = Lookup(
            sources=np.empty_like(positions),
            epochs=np.empty_like(positions),
            indices=np.empty_like(positions),
            keys=np.empty(positions.shape, dtype=np.uint64),
        )
        self._descend(self.root, positions, slice(None), result)
        return result

    def counts(self, position: int) -> list[int]:
        """Return how many of the positions before ``position`` fall to each source. O(sources).

        Below a ``LimitNode``, the samples that a pass leaves out count too.
        """
        counts = leaf_counts(self.root, position)
        return [counts.get(leaf.path, 0) for leaf in self.leaves]

    def find(self, source: int, index: int, *, begin: int, end: int) -> SampleTimes:
        """Return at which of the positions ``begin`` to ``end - 1`` a sample comes.

        ``source`` is the number of a leaf, ``index`` a sample of its dataset, as in a ``Lookup``. Each epoch of the
        source within these positions costs as much as a lookup.

        Raises:
            ConfigError: the positions lie outside 0 to 2^62, or the source has no such sample.
        """
        leaf = self.leaves[source]
        rank_in_source = index - leaf.first_sample
        if not 0 <= rank_in_source < leaf.num_samples:
            raise ConfigError(
                f"source {leaf.path!r} has the samples {leaf.first_sample:,} to "
                f"{leaf.first_sample + leaf.num_samples - 1:,}; found {index:,}"
            )
        if not 0 <= begin <= end <= MAX_POSITIONS:
            raise ConfigError(f"positions run from 0 to 2^62 - 1, found {begin} .. {end - 1}")
        first, beyond = self.counts(begin)[source], self.counts(end)[source]
        epochs = np.arange(first // leaf.num_samples, -(-beyond // leaf.num_samples), dtype=np.int64)
        keys = derive_array(self._keys[source], epochs)
        indices = np.full_like(epochs, rank_in_source)
        within = self.order.ranks(indices, keys, leaf.num_samples, leaf.shards)
        ranks = epochs * leaf.num_samples + within
        inside = (ranks >= first) & (ranks < beyond)
        positions = self.ascend(source, ranks[inside])
        taken = (positions >= begin) & (positions < end)
        return SampleTimes(positions[taken], epochs[inside][taken])

    def ascend(self, source: int, ranks: IntArray) -> IntArray:
        """Return (n,) int64: the position of each rank of a source, or -1 if it is never taken."""
        return self._ascend(self.root, self.leaves[source].path, ranks)

    def keys(self, source: int, epochs: IntArray) -> KeyArray:
        """Return (n,) uint64: the keys of epochs of a source, as in a ``Lookup``."""
        return derive_array(self._keys[source], epochs)

    def _within(self, leaf: Leaf, number: int, ranks: IntArray) -> tuple[IntArray, IntArray, KeyArray]:
        """Return epochs, sample indices and keys at ranks of a source."""
        epochs = ranks // leaf.num_samples
        keys = derive_array(self._keys[number], epochs)
        indices = self.order.indices(ranks - epochs * leaf.num_samples, keys, leaf.num_samples, leaf.shards)
        return epochs, indices + leaf.first_sample if leaf.first_sample else indices, keys

    def _descend(self, node: Node, ranks: IntArray, rows: IntArray | slice, result: Lookup) -> None:
        """Fill ``rows`` of the result for ``ranks`` of a node."""
        if isinstance(node, Leaf):
            number = self._numbers[node.path]
            result.sources[rows] = number
            found = self._within(node, number, ranks)
            result.epochs[rows], result.indices[rows], result.keys[rows] = found
            return
        chosen, child_ranks = node.split(ranks)
        # One stable sort groups the rows by child: a thousand children then cost a thousand slices, not masks.
        by_child = np.argsort(chosen, kind="stable")
        bounds = np.searchsorted(chosen[by_child], np.arange(len(node.children) + 1))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            mine = by_child[bounds[number] : bounds[number + 1]]
            child_rows = mine if isinstance(rows, slice) else rows[mine]
            self._descend(node.children[number], child_ranks[mine], child_rows, result)

    def _ascend(self, node: Node, path: str, ranks: IntArray) -> IntArray:
        """Return the rank in a node of each rank of a leaf below it, or -1 if it is never taken."""
        if isinstance(node, Leaf):
            return ranks
        child = node.child_of[path]
        below = self._ascend(node.children[child], path, ranks)
        return np.where(below < 0, -1, node.join(child, np.maximum(below, 0)))
