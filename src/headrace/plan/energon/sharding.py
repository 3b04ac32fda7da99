"""Which samples each worker has, and the slices that it reads in one go: integers, and two roundings of floats.

    1. the samples of a source are shared out among all workers of all ranks, each a run of neighbours. What the number
       of workers leaves over goes to workers far apart: by the reversal of the bits of their numbers, from ``rotation``
    2. a worker's run is cut at the borders of shards
    3. a piece longer than 1.5 times ``max_samples_per_sequence`` is cut into about as long slices

Source: Energon 7.4, ``Sharder``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray


class EnergonTopology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranks, worker processes of each (0: none, the rank reads itself), and the offset of all seeds."""

    world_size: int
    num_workers: int
    seed_offset: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for no ranks, or workers below 0."""
        if self.world_size < 1 or self.num_workers < 0:
            raise ConfigError(
                f"world_size is at least 1 and num_workers at least 0, found {self.world_size} and {self.num_workers}"
            )

    @property
    def workers_a_rank(self) -> int:
        """Those that read: at least one."""
        return max(1, self.num_workers)

    @property
    def num_readers(self) -> int:
        """Of all ranks."""
        return self.world_size * self.workers_a_rank

    def reader(self, rank: int, worker: int) -> int:
        """The number of a rank's worker among all.

        Raises:
            ConfigError: there is no such rank or worker.
        """
        if not 0 <= rank < self.world_size or not 0 <= worker < self.workers_a_rank:
            raise ConfigError(
                f"rank {rank}, worker {worker} of {self.world_size} ranks with {self.workers_a_rank} each that read"
            )
        return rank * self.workers_a_rank + worker


def bit_reversal(length: int) -> list[int]:
    """0 to length - 1, halved and interleaved again and again: the reversal of the bits, for any length."""
    return _interleaved(list(range(length)))


def _interleaved(numbers: list[int]) -> list[int]:
    if len(numbers) <= 2:
        return numbers
    half = len(numbers) // 2
    left, right = _interleaved(numbers[:half]), _interleaved(numbers[half:])
    # The right half may have one more.
    pairs = [number for pair in zip(left, right, strict=False) for number in pair]
    return pairs + right[len(left) :]


def worker_bounds(begin: int, end: int, num_readers: int, *, rotation: int = 0) -> list[int]:
    """num_readers + 1 numbers: reader g has the samples from the g-th up to the next one."""
    each, left = divmod(end - begin, num_readers)
    counts = [each] * num_readers
    for slot, reader in enumerate(bit_reversal(num_readers)):
        counts[reader] += (slot - rotation) % num_readers < left
    bounds = [begin]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return bounds


def slice_offsets(
    shard_bounds: IntArray, begin: int, end: int, *, max_samples_per_sequence: int | None
) -> tuple[int, ...]:
    """Where the slices of the samples ``begin`` to ``end - 1`` begin, and the end; the end alone if there are none."""
    inner = shard_bounds[(shard_bounds > begin) & (shard_bounds < end)]
    borders = np.unique(np.concatenate([[begin], inner, [end]])).tolist()
    offsets = [offset for piece in pairwise(borders) for offset in _cut(*piece, max_samples_per_sequence)]
    return (*offsets, end)


def _cut(begin: int, end: int, longest: int | None) -> Sequence[int]:
    if longest is None or end - begin <= longest * 1.5:
        return (begin,)
    # Halves go to the even number, and so does theirs.
    number = max(round((end - begin) / longest), 1)
    size = (end - begin) / number
    return [begin + int(k * size) for k in range(number)]
