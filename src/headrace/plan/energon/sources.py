"""How an Energon worker reads one source: its share of the samples, cut into slices that it reads in a drawn order.

    1. The samples of a source are divided over all workers of all ranks, a run of neighbours for each. If they do not
       divide evenly, the extra samples go to workers far apart: in the order of the reversed bits of their numbers,
       beginning at ``rotation``.
    2. The run of a worker is cut into pieces at the borders of shards.
    3. A piece longer than 1.5 times ``max_samples_per_sequence`` is cut into slices of about that length.

All of this is integer arithmetic, except for two roundings of floats. A worker reads from several slices at a time.

Source: Energon 7.4, ``Sharder``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.subset import SubsetRange
from headrace.plan.torch_draws import WorkerRng, running_sums


class EnergonSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dataset of the mix.

    ``shard_counts``: the number of samples in each shard of the split, in order, including excluded samples.
    ``subset``: the part of the samples that is read, or None for all.
    ``weight``, ``repetitions``: used if the mix is by weights, or by repetitions.
    ``shuffle_over_epochs``: how many epochs of slices are permuted together; with -1 each slice is drawn independently.
    ``excluded``: samples that are skipped.

    Example:
        >>> headrace.plan.energon.EnergonSource(shard_counts=(1000, 1000, 300), weight=2.0).num_samples
        2300
    """

    shard_counts: tuple[int, ...]
    subset: SubsetRange | None = None
    weight: float = 1.0
    repetitions: int | float | None = None
    shuffle_over_epochs: int = 1
    excluded: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Raise ConfigError for counts below 0, or for weights, repetitions and epochs out of range."""
        if not self.shard_counts or min(self.shard_counts) < 0:
            raise ConfigError(
                f"shard_counts must have a number of at least 0 for each shard, and at least one shard; found "
                f"{self.shard_counts}"
            )
        if not self.weight > 0 or (self.repetitions is not None and not self.repetitions > 0):
            raise ConfigError(f"weight and repetitions must be above 0, found {self.weight} and {self.repetitions}")
        if self.shuffle_over_epochs != -1 and self.shuffle_over_epochs < 1:
            raise ConfigError(f"shuffle_over_epochs must be at least 1, or -1, found {self.shuffle_over_epochs}")

    @property
    def num_samples(self) -> int:
        """The number of samples in all shards.

        Like Energon, it subtracts neither the subset nor excluded samples; weights and rotations are computed from it.
        """
        return sum(self.shard_counts)


class SliceReader:
    """Reads the slices of one worker; a pass that was left in the middle continues there.

    ``offsets`` are those of `slice_offsets`. Without a random generator, slices come in order, one after another.
    """

    def __init__(
        self, offsets: tuple[int, ...], source: EnergonSource, open_slices: int, rng: WorkerRng | None
    ) -> None:
        self._offsets = offsets
        self._excluded = source.excluded
        self._epochs = source.shuffle_over_epochs
        self._rng = rng
        self._open_slices = open_slices if rng is not None else 1
        self._begun = False
        self._pending: list[int] = []
        # For each open slice its next sample and its end; an end of -1 means that no slice is open.
        self._next = [-1] * self._open_slices
        self._ends = [-1] * self._open_slices
        self._lengths = [0.0] * self._open_slices

    @property
    def num_samples(self) -> int:
        """The number of samples in a pass, including excluded ones."""
        return self._offsets[-1] - self._offsets[0]

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of a pass, or of the rest of one."""
        if self.num_samples < 1:
            return
        if not self._begun:
            self._begin()
        sums = running_sums(self._lengths)
        while sums[-1] > 0:
            at = self._rng.choose(sums) if self._rng is not None else 0
            sample = self._next[at]
            self._next[at] += 1
            if self._next[at] >= self._ends[at]:
                self._open(at)
                sums = running_sums(self._lengths)
            if sample not in self._excluded:
                yield sample
        self._begun = False

    def _begin(self) -> None:
        """Draw the order of the slices and open the first ones."""
        number = len(self._offsets) - 1
        if self._rng is None:
            drawn = list(range(number))
        elif self._epochs == -1:
            drawn = [self._rng.below(number) for _ in range(self._open_slices)]
        else:
            drawn = [place % number for place in self._rng.permutation(number * self._epochs)]
        self._begun, self._pending = True, drawn[::-1]
        for at in range(self._open_slices):
            if not self._pending:
                break
            self._open(at)

    def _open(self, at: int) -> None:
        """Open the next slice in place of an exhausted one, if there is a next one."""
        if self._pending:
            number = self._pending.pop()
        elif self._epochs == -1 and self._rng is not None:
            number = self._rng.below(len(self._offsets) - 1)
        else:
            self._lengths[at] = 0.0
            return
        self._next[at], self._ends[at] = self._offsets[number], self._offsets[number + 1]
        self._lengths[at] = float(self._ends[at] - self._next[at])


class Repeated:
    """Repeats the passes of a reader, endlessly or ``repetitions`` times; a last pass in part is rounded down."""

    def __init__(self, reader: SliceReader, repetitions: int | float | None) -> None:
        self._reader = reader
        self._repetitions = repetitions

    @property
    def num_samples(self) -> int:
        """The number of samples in a pass; 0 for a worker without samples."""
        return self._reader.num_samples

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of all passes. After a last pass in part, the next iteration begins where it ended."""
        done = 0
        while self._repetitions is None or done < self._repetitions:
            last = self._repetitions is not None and done == floor(self._repetitions)
            stop = floor(self._reader.num_samples * (self._repetitions - done)) if last and self._repetitions else None
            if stop == 0:
                break
            for number, sample in enumerate(self._reader, start=1):
                yield sample
                if number == stop:
                    break
            done += 1


class EnergonTopology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of ranks, the worker processes of each, and the offset of all seeds.

    With ``num_workers=0`` there are no worker processes, and the rank reads itself.

    Example:
        >>> headrace.plan.energon.EnergonTopology(world_size=8, num_workers=4).num_readers
        32
    """

    world_size: int
    num_workers: int
    seed_offset: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for less than 1 rank, or less than 0 workers."""
        if self.world_size < 1 or self.num_workers < 0:
            raise ConfigError(
                f"world_size must be at least 1 and num_workers at least 0, found {self.world_size} and "
                f"{self.num_workers}"
            )

    @property
    def workers_a_rank(self) -> int:
        """How many workers of a rank read, at least one: without workers it is the rank itself."""
        return max(1, self.num_workers)

    @property
    def num_readers(self) -> int:
        """How many workers read, over all ranks."""
        return self.world_size * self.workers_a_rank

    def reader(self, rank: int, worker: int) -> int:
        """Return the number of a rank's worker among the workers of all ranks.

        Raises:
            ConfigError: there is no such rank or worker.
        """
        if not 0 <= rank < self.world_size or not 0 <= worker < self.workers_a_rank:
            raise ConfigError(
                f"there is no worker {worker} of rank {rank}: there are {self.world_size} ranks with "
                f"{self.workers_a_rank} workers each, numbered from 0"
            )
        return rank * self.workers_a_rank + worker


def bit_reversal(length: int) -> list[int]:
    """Return 0 to length - 1, halved and interleaved recursively: a reversal of the bits, for any length."""
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
    """Return num_readers + 1 bounds: reader g has the samples from bound g up to bound g + 1."""
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
    """Return where the slices of the samples ``begin`` to ``end - 1`` begin, and ``end``; only ``end`` without any."""
    inner = shard_bounds[(shard_bounds > begin) & (shard_bounds < end)]
    borders = np.unique(np.concatenate([[begin], inner, [end]])).tolist()
    offsets = [offset for piece in pairwise(borders) for offset in _cut(*piece, max_samples_per_sequence)]
    return (*offsets, end)


def _cut(begin: int, end: int, longest: int | None) -> Sequence[int]:
    if longest is None or end - begin <= longest * 1.5:
        return (begin,)
    # Python rounds halves to even, and Energon uses the same function.
    number = max(round((end - begin) / longest), 1)
    size = (end - begin) / number
    return [begin + int(k * size) for k in range(number)]
