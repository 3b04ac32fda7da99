"""Samples of similar length brought together, within a window of steps: a permutation that is computed, not stored.

The samples of some steps are sorted by length, and handed out in runs to groups of places; which group gets the short
ones and which the long ones is drawn. A group is a step, or so many neighbouring places of one:

    lengths of 6 samples   9 2 7 3 8 1      two steps of 3, each a group      drawn: the second group first
    sorted                 1 2 3 | 7 8 9    second group: 1 2 3, first group: 7 8 9
    samples by place       2 4 0 | 5 1 3

Every sample of the window has one place of it, and every step as many samples as before. What is drawn depends on a key
alone, so that the order is a pure function of the position, for any ranks, micro-batches and workers.
"""

from __future__ import annotations

from operator import index

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, derive_array


class Bucketing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples of similar length share a step, or a group of places in it, among those of ``window_steps`` steps.

    ``group_samples`` None makes whole steps alike. The number of ranks times the micro-batch size makes alike what all
    ranks compute at the same time, and mixes lengths within a step; the micro-batch size alone makes each micro-batch
    alike. The last group of a step that they do not divide is smaller. A larger window pads less, and strays further
    from the shuffled order.
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
        """(groups,) int64: places of each group, for steps of these sizes."""
        if self.group_samples is None:
            return np.array(step_sizes, dtype=np.int64)
        sizes = []
        for size in step_sizes:
            whole, rest = divmod(size, self.group_samples)
            sizes += [self.group_samples] * whole + [rest] * (rest > 0)
        return np.array(sizes, dtype=np.int64)


def bucketed(lengths: IntArray, group_sizes: IntArray, key: int) -> IntArray:
    """(n,) int64: for each place of a window the sample, of 0 .. n - 1, that comes there; a permutation.

    ``lengths`` is (n,) int64, ``group_sizes`` (groups,) int64 with the sum n. Samples of equal length keep their order.
    O(n log n).
    """
    by_length = np.argsort(lengths, kind="stable")
    drawn = np.argsort(derive_array(key, np.arange(len(group_sizes))), kind="stable")
    ends = np.cumsum(group_sizes[drawn])
    begins = np.empty_like(group_sizes)
    begins[drawn] = ends - group_sizes[drawn]
    # The places of a group, one after another, take the samples from where its run begins in the sorted ones.
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(group_sizes) - group_sizes, group_sizes)
    found: IntArray = by_length[np.repeat(begins, group_sizes) + within]
    return found
