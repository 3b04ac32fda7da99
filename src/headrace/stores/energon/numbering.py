"""Numbers of samples in a dataset some of whose samples are left out. Pure arithmetic."""

from __future__ import annotations

import numpy as np

from headrace.stores.types import IntArray


class Numbering:
    """Sample numbers to shards and back. *Raw* numbers count the samples that are left out, *numbers* do not.

    With counts (3, 2) and raw sample 1 left out: numbers 0, 1, 2, 3 are raw 0, 2, 3, 4, and the bounds 0, 2, 4.

    Args:
        counts: (shards,) int64, samples of each shard.
        left_out: raw numbers, sorted, each once.

    Attributes:
        raw_bounds: (shards + 1,) int64, raw number of the first sample of each shard, and of all.
        bounds: the same in numbers.
    """

    def __init__(self, counts: IntArray, left_out: IntArray) -> None:
        self.raw_bounds: IntArray = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.left_out = left_out
        self._before = left_out - np.arange(len(left_out))
        self.bounds: IntArray = self.raw_bounds - np.searchsorted(left_out, self.raw_bounds)
        self.bounds.flags.writeable = False

    def places(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """For each number its shard, and its index in the shard with those that are left out; both (n,) int64."""
        if len(self._before):
            numbers = numbers + np.searchsorted(self._before, numbers, side="right")
        shards = np.searchsorted(self.raw_bounds, numbers, side="right") - 1
        return shards, numbers - self.raw_bounds[shards]

    def number(self, shard: int, index: int) -> int | None:
        """The number of a sample of a shard; None if it is left out."""
        raw = int(self.raw_bounds[shard]) + index
        at = int(np.searchsorted(self.left_out, raw))
        if at < len(self.left_out) and self.left_out[at] == raw:
            return None
        return raw - at
