"""Bucketing: samples of similar length come together within a window of steps, by a permutation that is computed.

The samples of the steps in a window are sorted by length and distributed in runs over groups of places. Which group
gets the short samples and which the long ones is drawn. A group is a step, or some neighbouring places of a step:

    lengths of 6 samples   9 2 7 3 8 1      two steps of 3, each a group      drawn: the second group first
    sorted                 1 2 3 | 7 8 9    second group: 1 2 3, first group: 7 8 9
    samples by place       2 4 0 | 5 1 3

Every sample of the window has one place in it, and every step has as many samples as before. The draw depends only on a
key, so that the order is a pure function of the position, for any number of ranks and workers and any micro-batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from headrace.config import check_fields
from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, derive, derive_array, source_key
from headrace.plan.schedule import BatchSchedule


class Bucketing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples of similar length share a step, or a group of places in it, within each window of ``window_steps`` steps.

    By default (``group_samples=None``) the samples of a whole step have similar lengths. With ``group_samples`` equal
    to the number of ranks times the micro-batch size, the samples of a micro-step are similar over all ranks, and a
    step mixes lengths; with the micro-batch size, each micro-batch is similar within itself. If ``group_samples`` does
    not divide a step, the last group of the step is smaller. A larger window needs less padding, but strays further
    from the shuffled order.

    Example:
        >>> bucketing = headrace.plan.Bucketing(window_steps=8, group_samples=4)
        >>> bucketing.group_sizes([10, 10]).tolist()
        [4, 4, 2, 4, 4, 2]
    """

    window_steps: int = 16
    group_samples: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes below 1."""
        check_fields(self)
        if self.window_steps < 1 or (self.group_samples is not None and self.group_samples < 1):
            raise ConfigError(
                f"window_steps and group_samples are at least 1, found {self.window_steps} and {self.group_samples}"
            )

    def group_sizes(self, step_sizes: list[int]) -> IntArray:
        """Return (num_groups,) int64: the number of places in each group, for steps of these sizes."""
        if self.group_samples is None:
            return np.array(step_sizes, dtype=np.int64)
        sizes = []
        for size in step_sizes:
            whole, rest = divmod(size, self.group_samples)
            sizes += [self.group_samples] * whole + [rest] * (rest > 0)
        return np.array(sizes, dtype=np.int64)


def bucketed(lengths: IntArray, group_sizes: IntArray, key: int) -> IntArray:
    """Return (n,) int64: for each place of a window the sample, of 0 .. n - 1, that comes there; a permutation.

    ``lengths`` is (n,) int64 and ``group_sizes`` is (num_groups,) int64 with the sum n. Samples of equal length keep
    their order. O(n log n).
    """
    by_length = np.argsort(lengths, kind="stable")
    drawn = np.argsort(derive_array(key, np.arange(len(group_sizes))), kind="stable")
    ends = np.cumsum(group_sizes[drawn])
    begins = np.empty_like(group_sizes)
    begins[drawn] = ends - group_sizes[drawn]
    # The places of a group take, one after another, the sorted samples from where the run of the group begins.
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(group_sizes) - group_sizes, group_sizes)
    found: IntArray = by_length[np.repeat(begins, group_sizes) + within]
    return found


_KEPT_WINDOWS = 4


class BucketedOrder:
    """The positions of a run, rearranged within windows of steps. A pure function; the last few windows are cached.

    ``lengths`` returns the lengths of the samples at some positions before they are rearranged. Each window reads the
    lengths of all its samples once, on every rank. ``seeds`` are (first step, seed), rising from step 0: from the
    window of the step on, places are drawn with that seed.
    """

    def __init__(
        self,
        bucketing: Bucketing,
        schedule: BatchSchedule,
        *,
        length: int | None,
        seeds: Sequence[tuple[int, int]],
        lengths: Callable[[IntArray], IntArray],
    ) -> None:
        self._bucketing = bucketing
        self._schedule = schedule
        self._length = length
        self._seeds = seeds
        self._keys = [source_key(seed, "", "bucketing") for _, seed in seeds]
        self._lengths = lengths
        self._windows: dict[int, tuple[int, IntArray]] = {}

    def recipe(self, end: int | None = None) -> dict[str, Any]:
        """Return what decides the places before a step, or all of them.

        The seed does, even if the order has none; and the last window ends with the run.
        """
        seeds = [one for one in self._seeds if end is None or one[0] < end] or self._seeds[:1]
        later = {"later_seeds": [list(one) for one in seeds[1:]]} if len(seeds) > 1 else {}
        bucketing = msgspec.to_builtins(self._bucketing)
        return {**bucketing, "seed": seeds[0][1], **later, "num_samples": self._length, "version": 1}

    def window_end(self, step: int) -> int:
        """Return the position at which the window of a step ends, if the run does not end before."""
        return self._schedule.begin((step // self._bucketing.window_steps + 1) * self._bucketing.window_steps)

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
        found = self._windows.pop(window, None)
        if found is None:
            found = self._made(window)
        # The newest entry is the one used last. Threads that miss the same window both make it.
        self._windows[window] = found
        for oldest in list(self._windows)[:-_KEPT_WINDOWS]:
            self._windows.pop(oldest, None)
        return found

    def _made(self, window: int) -> tuple[int, IntArray]:
        steps = range(window * self._bucketing.window_steps, (window + 1) * self._bucketing.window_steps + 1)
        bounds = [self._schedule.begin(step) for step in steps]
        if self._length is not None:
            bounds = [min(bound, self._length) for bound in bounds]
        sizes = [size for size in np.diff(bounds).tolist() if size]
        lengths = self._lengths(np.arange(bounds[0], bounds[-1], dtype=np.int64))
        number = bisect_right(self._seeds, steps.start, key=itemgetter(0)) - 1
        places = bucketed(lengths, self._bucketing.group_sizes(sizes), derive(self._keys[number], window))
        return bounds[0], places
