"""The positions of a run, rearranged window by window so that samples of similar length come together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from headrace.plan import BatchSchedule, IntArray
from headrace.plan.bucketing import Bucketing, bucketed
from headrace.plan.keys import derive, source_key

_KEPT_WINDOWS = 4


class BucketedOrder:
    """The positions of a run, rearranged within windows of steps. A pure function; the last few windows are cached.

    ``lengths`` returns the lengths of the samples at some positions before they are rearranged. Each window reads the
    lengths of all its samples once, on every rank.
    """

    def __init__(
        self,
        bucketing: Bucketing,
        schedule: BatchSchedule,
        *,
        length: int | None,
        seed: int,
        lengths: Callable[[IntArray], IntArray],
    ) -> None:
        self._bucketing = bucketing
        self._schedule = schedule
        self._length = length
        self._key = source_key(seed, "", "bucketing")
        self._lengths = lengths
        self._windows: OrderedDict[int, tuple[int, IntArray]] = OrderedDict()

    def arranged(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: for each position, the position before rearranging whose sample it gets."""
        order = np.argsort(positions, kind="stable")
        ordered = positions[order]
        found = np.empty_like(positions)
        first = 0
        while first < len(ordered):
            step = self._schedule.step_of(int(ordered[first]))
            begin, places = self._window(step // self._bucketing.window_steps)
            end = int(np.searchsorted(ordered, begin + len(places)))
            found[order[first:end]] = begin + places[ordered[first:end] - begin]
            first = end
        return found

    def _window(self, window: int) -> tuple[int, IntArray]:
        """Return the first position of a window, and for each place in it the sample that comes there."""
        if window in self._windows:
            self._windows.move_to_end(window)
            return self._windows[window]
        steps = range(window * self._bucketing.window_steps, (window + 1) * self._bucketing.window_steps + 1)
        bounds = [self._schedule.begin(step) for step in steps]
        if self._length is not None:
            bounds = [min(bound, self._length) for bound in bounds]
        sizes = [size for size in np.diff(bounds).tolist() if size]
        lengths = self._lengths(np.arange(bounds[0], bounds[-1], dtype=np.int64))
        places = bucketed(lengths, self._bucketing.group_sizes(sizes), derive(self._key, window))
        self._windows[window] = bounds[0], places
        while len(self._windows) > _KEPT_WINDOWS:
            self._windows.popitem(last=False)
        return self._windows[window]
