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

from operator import index

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, derive_array


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
        if index(self.window_steps) < 1 or (self.group_samples is not None and index(self.group_samples) < 1):
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
