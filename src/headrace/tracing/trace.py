"""Where a sample comes in one run, and what comes at a position: the plan in both directions, without data.

step N ---- BatchSchedule ----> positions ---- Plan.lookup ----> source, epoch, sample index
step  <---- BatchSchedule ----- positions <---- Plan.find ------ source, sample index: once an epoch

How far a run has come is a number of slots. If slots are drawn, those of a step take its positions in another order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from copy import copy
from typing import NamedTuple

import numpy as np

from headrace.datasets import Run
from headrace.plan import IntArray, LimitNode, Lookup, Node, Plan, leaves

MAX_TRACED = 1 << 50
"""Position up to which an endless run is searched."""

MAX_EPOCHS = 1 << 15
"""Epochs that are searched one by one if a limit leaves samples out: about a second."""

_FIRST_EPOCHS, _MOST_EPOCHS = 64, 1 << 12


class Sightings(NamedTuple):
    """The first times that a sample comes, and how many there are.

    ``positions`` (n,) int64, rising: positions of the plan, before bucketing moves them within their windows if `Trace`
    does not know how. ``epochs`` (n,) int64: epochs of the source. ``total``: number of all times, including those.
    ``end``: the slot before which they were searched, lower than requested if the search would have taken too long.
    """

    positions: IntArray
    epochs: IntArray
    total: int
    end: int


class Trace:
    """One run as its plan: which samples a step has, and at which positions a sample comes.

    Args:
        run: the run.
        knows_lengths: whether the lengths are known by which bucketing moves samples within windows of steps.
    """

    def __init__(self, run: Run, *, knows_lengths: bool) -> None:
        self.plan = plan = run.plan
        self.schedule = run.schedule
        self.length = run.length
        self.begin = run.begin
        self.draw = run.draw
        self.window_steps = None if run.bucketing is None else run.bucketing.window_steps
        # A draw moves samples within their step, as bucketing does within its window.
        self._in_windows = self.window_steps is not None or self.draw is not None
        self._arranged = run.buckets.arranged if run.buckets is not None and knows_lengths else None
        # Epochs of a plan that was changed are not all whole, so they are searched one by one too.
        self._limited = set(_limited(plan.root)) if isinstance(plan, Plan) else {leaf.path for leaf in plan.leaves}

    @property
    def is_vague(self) -> bool:
        """Whether a sample is known only to be in one of the steps of a window."""
        return self.window_steps is not None and self._arranged is None

    def slots(self, positions: IntArray) -> IntArray:
        """(n,) int64: the slot that takes each position, in the same step."""
        return positions if self.draw is None or self.is_vague else self.draw.slots(positions)

    def positions(self, begin: int, end: int) -> IntArray:
        """(end - begin,) int64, rising: the positions that some slots of one step take."""
        slots = np.arange(begin, end, dtype=np.int64)
        return slots if self.draw is None or self.is_vague else np.sort(self.draw.positions(slots))

    def resumed(self, position: int, ends: tuple[int, ...]) -> Trace:
        """Return this trace with the slots of a step drawn as a saved state says."""
        if self.draw is None or not ends:
            return self
        found = copy(self)
        found.draw = self.draw.resumed(position, ends)
        return found

    def lookup(self, positions: IntArray) -> Lookup:
        """Return what comes at positions; if vague, the samples of the window, not in the order that is fed."""
        return self.plan.lookup(positions if self._arranged is None else self._arranged(positions))

    def window_of(self, position: int) -> tuple[int, int]:
        """Return the steps ``[first, end)`` in which the sample at a position of the plan may be."""
        step = self.schedule.step_of(position)
        if self.window_steps is None:
            return step, step + 1
        first = step // self.window_steps * self.window_steps
        return first, first + self.window_steps

    def reached(self, source: int, num_samples: int) -> int | None:
        """Return the position before which a source was fed ``num_samples``, or None. About 50 times O(sources)."""
        end = MAX_TRACED if self.length is None else self.length
        if self.plan.counts(end)[source] < num_samples:
            return None
        return bisect_left(range(end), num_samples, key=lambda position: self.plan.counts(position)[source])

    def horizon(self, source: int, begin: int, epochs: int) -> int:
        """Return the position at which a source went through ``epochs`` more since ``begin``, or the last position."""
        wanted = self.plan.counts(begin)[source] + epochs * self.plan.leaves[source].num_samples
        found = self.reached(source, wanted)
        if found is not None:
            return found
        return MAX_TRACED if self.length is None else self.length

    def find(self, source: int, index: int, *, begin: int, end: int, limit: int | None = None) -> Sightings:
        """Find a sample among the slots ``[begin, end)``: the first ``limit`` positions, and the number of all.

        Costs some look-ups for each position that is returned, and some for the count. Below a `LimitNode`, which
        leaves samples out, and in a run that was edited, it costs some for every epoch, of which `MAX_EPOCHS` are
        searched.

        Raises:
            ConfigError: there is no such sample.
        """
        searched = end
        if self.is_vague:
            begin, end = self.begin(self.window_of(begin)[0]), self._aligned(end)
        # Even if there is nothing to search, this checks whether there is such a sample.
        parts = [self._within(source, index, begin, begin, begin, end)]
        leaf = self.plan.leaves[source]
        most = self.plan.counts(begin)[source] + MAX_EPOCHS * leaf.num_samples
        count = 0
        for low, high in self._pieces(source, begin, end, min(_FIRST_EPOCHS, limit or _FIRST_EPOCHS)):
            if limit is not None and count >= limit and leaf.path not in self._limited:
                count += self._counted(source, index, low, end)
                break
            if leaf.path in self._limited and self.plan.counts(low)[source] >= most:
                searched = low
                break
            found = self._within(source, index, low, high, begin, end)
            if limit is None or count < limit:
                parts.append(found)
            count += len(found[0])
        positions, epochs = (np.concatenate(column)[:limit] for column in zip(*parts, strict=True))
        return Sightings(positions, epochs, count, searched)

    def _pieces(self, source: int, begin: int, end: int, epochs: int) -> Iterator[tuple[int, int]]:
        """Yield ``[begin, end)`` in pieces of some epochs, cut at windows; the first pieces are short."""
        size = self.plan.leaves[source].num_samples
        low = self.begin(self.window_of(begin)[0]) if self._in_windows else begin
        until, total = self._aligned(end), self.plan.counts(end)[source]
        while low < until:
            wanted = self.plan.counts(low)[source] + epochs * size
            reached = until if wanted >= total else self.reached(source, wanted)
            high = until if reached is None else min(until, self._aligned(reached))
            yield low, high
            low, epochs = high, min(2 * epochs, _MOST_EPOCHS)

    def _aligned(self, position: int) -> int:
        """Return the first border of windows at or after a position."""
        if not self._in_windows or position == 0:
            return position
        return max(position, self.begin(self.window_of(position - 1)[1]))

    def _within(self, source: int, index: int, low: int, high: int, begin: int, end: int) -> tuple[IntArray, IntArray]:
        """Return positions and epochs, in slots of ``[begin, end)``, of a sample in the windows ``[low, high)``."""
        seen = self.plan.find(source, index, begin=low, end=high)
        positions = seen.positions
        if (arranged := self._arranged) is not None:
            positions = np.array([self._moved(position, arranged) for position in positions.tolist()], dtype=np.int64)
        # Bucketing may also move a later epoch before an earlier one.
        rows = np.argsort(positions, kind="stable")
        slots = self.slots(positions[rows])
        rows = rows[(slots >= begin) & (slots < end)]
        return positions[rows], seen.epochs[rows]

    def _moved(self, position: int, arranged: Callable[[IntArray], IntArray]) -> int:
        """Return where bucketing puts the sample that the plan has at a position."""
        first, end = self.window_of(position)
        places = np.arange(self.begin(first), self.begin(end), dtype=np.int64)
        return int(places[np.flatnonzero(arranged(places) == position)[0]])

    def _counted(self, source: int, index: int, begin: int, end: int) -> int:
        """Count how often a sample comes in ``[begin, end)`` if every epoch has it once; ``begin`` is a border."""
        if self._in_windows and self._aligned(end) != end:
            border = max(begin, self.begin(self.window_of(end)[0]))
            last = self._within(source, index, border, self._aligned(end), begin, end)[0]
            return self._counted(source, index, begin, border) + len(last)
        size = self.plan.leaves[source].num_samples
        low, high = self.plan.counts(begin)[source], self.plan.counts(end)[source]
        first, beyond = -(-low // size), high // size
        if first > beyond:
            return self._numbered(source, index, begin, end)
        # Whole epochs are counted; the incomplete ones at both ends are searched.
        borders = [self.reached(source, epoch * size) if epoch else 0 for epoch in (first, beyond)]
        before, after = (min(max(border or 0, begin), end) for border in borders)
        return beyond - first + self._numbered(source, index, begin, before) + self._numbered(source, index, after, end)

    def _numbered(self, source: int, index: int, begin: int, end: int) -> int:
        return len(self.plan.find(source, index, begin=begin, end=end).positions)


def _limited(node: Node) -> Iterator[str]:
    """Yield the paths of the sources that a limit leaves samples out of."""
    if isinstance(node, LimitNode):
        yield from (leaf.path for leaf in leaves(node))
    else:
        for child in getattr(node, "children", ()):
            yield from _limited(child)
