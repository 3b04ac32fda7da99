"""Where the shards of a source begin and end: what decides which samples are neighbours on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray


class Shards:
    """The borders of the shards of a source, as the plan needs them.

    ``bounds`` is (num_shards + 1,) int64, rising from 0: shard s begins with sample ``bounds[s]`` and ends before
    ``bounds[s + 1]``. Shards without samples are left out. O(shards) to make and to keep, however many samples.

    Raises:
        ConfigError: the bounds are no such numbers, or there is no sample.
    """

    def __init__(self, bounds: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        given: IntArray = np.asarray(bounds, dtype=np.int64)
        if given.ndim != 1 or not given.size or given[0] != 0 or bool((np.diff(given) < 0).any()):
            raise ConfigError(f"bounds of shards rise from 0, one more than there are shards; found {given}")
        if not given[-1]:
            raise ConfigError("the shards have no samples; a source needs at least one")
        kept = np.append(True, np.diff(given) > 0)
        self.bounds: IntArray = given[kept]
        self.bounds.flags.writeable = False

    @classmethod
    def of_counts(cls, counts: Sequence[int] | NDArray[np.integer[Any]]) -> Shards:
        """From the number of samples of each shard."""
        return cls(np.append(0, np.cumsum(np.asarray(counts, dtype=np.int64))))

    @classmethod
    def whole(cls, num_samples: int) -> Shards:
        """One shard of all samples: any store that is read in order is one."""
        return cls([0, num_samples])

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.bounds[-1])

    @cached_property
    def digest(self) -> str:
        """128 bits in hex, the same for the same borders: what of them goes into a recipe."""
        return blake2b(self.bounds.astype("<i8").tobytes(), digest_size=16).hexdigest()

    def subset(self, begin: int, end: int) -> Shards:
        """The shards of the samples ``begin`` to ``end - 1`` alone, numbered from 0; the outer two may be cut."""
        return Shards(np.unique(np.clip(self.bounds, begin, end)) - begin)

    def shard_of(self, indices: IntArray) -> IntArray:
        """(n,) int64: the shard of each sample, among those that have any. O(log shards)."""
        return np.searchsorted(self.bounds, indices, side="right").astype(np.int64) - 1

    def __len__(self) -> int:
        """The number of shards that have samples."""
        return len(self.bounds) - 1

    def __eq__(self, other: object) -> bool:
        """Whether the borders are the same."""
        return isinstance(other, Shards) and self.digest == other.digest

    def __hash__(self) -> int:
        """Of the borders."""
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Shards: {self.num_samples:,} samples in {len(self):,}>"
