"""Energon's order: the samples of every rank and worker.

A worker reads from each source its share of the samples, cut into slices that it reads in a drawn order:

    1. The samples of a source are divided over all workers of all ranks, a run of neighbours for each. If they do not
       divide evenly, the extra samples go to workers far apart: in the order of the reversed bits of their numbers,
       beginning at ``rotation``.
    2. The run of a worker is cut into pieces at the borders of shards.
    3. A piece longer than 1.5 times ``max_samples_per_sequence`` is cut into slices of about that length.

All of this is integer arithmetic, except for two roundings of floats. A worker reads from several slices at a time.

Source: Energon 7.4, ``Sharder``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1
from itertools import islice, pairwise
from math import floor
from typing import Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from headrace.config import check_fields
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


T = TypeVar("T")


class EnergonSample(NamedTuple):
    """A sample: the number of its source, and its number within the split of that source."""

    source: int
    sample_index: int


class EnergonMixing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a training set is made from its sources.

    ``max_samples_per_sequence``: the approximate length of slices, or None for whole pieces of shards.
    ``parallel_shard_iters``: how many slices a worker reads from at the same time.
    ``shuffle_buffer_size``: the number of samples in the shuffle buffer of a worker; 0 and 1 mean no buffer.
    ``blend``:
        ``"weights"``      sources are drawn by their weights, endlessly;
        ``"repetitions"``  each source comes as often as its ``repetitions`` say, then all again with ``repeat``;
        ``"none"``         sources are drawn with equal weights, or without ``repeat`` each comes once.

    Example:
        >>> headrace.plan.energon.EnergonMixing(blend="weights", shuffle_buffer_size=100).repeat
        True
    """

    max_samples_per_sequence: int | None = None
    parallel_shard_iters: int = 16
    shuffle_buffer_size: int = 0
    blend: Literal["weights", "repetitions", "none"] = "none"
    repeat: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range, or for a blend by weights without ``repeat``."""
        if (self.max_samples_per_sequence or 1) < 1 or self.parallel_shard_iters < 1 or self.shuffle_buffer_size < 0:
            raise ConfigError(
                "max_samples_per_sequence and parallel_shard_iters must be at least 1 and shuffle_buffer_size at least "
                f"0, found {self.max_samples_per_sequence}, {self.parallel_shard_iters} and {self.shuffle_buffer_size}"
            )
        check_fields(self)
        if self.blend == "weights" and not self.repeat:
            raise ConfigError("a blend by weights is endless: use repeat=True, or blend='repetitions'")


def worker_seed(worker: int, seed_offset: int = 0) -> int:
    """Return the seed of a worker from its number among all workers of the run: the last four bytes of a SHA-1."""
    return int.from_bytes(sha1(f"{worker},{seed_offset}".encode(), usedforsecurity=False).digest()[-4:], "big")


class EnergonOrder:
    """Energon's training order, or with ``mixing=None`` its validation order: all sources one after another, once.

    The order depends on the topology: with another number of ranks or workers, other workers read other samples, in an
    unrelated order. A run in this order can be resumed only on the topology on which it was begun.

    Raises:
        ConfigError: there are no sources.

    Example:
        >>> energon = headrace.plan.energon
        >>> source = energon.EnergonSource(shard_counts=(4, 4))
        >>> topology = energon.EnergonTopology(world_size=2, num_workers=0)
        >>> order = energon.EnergonOrder([source], topology=topology, mixing=None)
        >>> [sample.sample_index for sample in order.samples(rank=1)]
        [4, 5, 6, 7]
    """

    def __init__(
        self, sources: Sequence[EnergonSource], *, topology: EnergonTopology, mixing: EnergonMixing | None
    ) -> None:
        if not sources:
            raise ConfigError("Energon's order needs at least one source")
        self.sources = tuple(sources)
        self.topology = topology
        self.mixing = mixing

    def slices(self, source: int, rank: int, worker: int) -> tuple[int, ...]:
        """Return where the slices of a source begin that a worker reads, and where the last one ends."""
        dataset = self.sources[source]
        reader = self.topology.reader(rank, worker)
        begin, end = (0, dataset.num_samples) if dataset.subset is None else dataset.subset.bounds(dataset.num_samples)
        rotation = sum(other.num_samples for other in self.sources[:source]) % self.topology.num_readers
        bounds = worker_bounds(begin, end, self.topology.num_readers, rotation=rotation)
        longest = None if self.mixing is None else self.mixing.max_samples_per_sequence
        borders = np.append(0, np.cumsum(np.array(dataset.shard_counts, dtype=np.int64)))
        return slice_offsets(borders, bounds[reader], bounds[reader + 1], max_samples_per_sequence=longest)

    def samples(self, rank: int, worker: int = 0) -> Iterator[EnergonSample]:
        """Yield the samples that one worker of a rank reads, to its end or endlessly.

        Raises:
            ConfigError: there is no such rank or worker, or a worker of an endless order has no samples.
        """
        seed = worker_seed(self.topology.reader(rank, worker), self.topology.seed_offset)
        numbers = range(len(self.sources))
        if self.mixing is None:
            offsets = [self.slices(number, rank, worker) for number in numbers]
            readers = [SliceReader(o, s, 1, None) for o, s in zip(offsets, self.sources, strict=True)]
            return (EnergonSample(number, index) for number in numbers for index in readers[number])
        mixed = _Mixed(
            [self._source(number, rank, worker, seed, self.mixing) for number in numbers],
            [self._weight(source, self.mixing) for source in self.sources],
            WorkerRng(seed),
        )
        again = self.mixing.repeat
        if again and not any(source.num_samples for source in mixed.sources):
            raise ConfigError(
                f"worker {worker} of rank {rank} has no samples: there are {sum(s.num_samples for s in self.sources):,}"
                f" samples for {self.topology.num_readers:,} workers; use fewer workers or ranks"
            )
        stream = _for_ever(mixed) if again else iter(mixed)
        size = self.mixing.shuffle_buffer_size
        return _buffered(stream, size, WorkerRng(seed)) if size > 1 else stream

    def num_samples(self, rank: int, worker: int = 0) -> int:
        """Return how many samples one worker of a rank reads in a pass, as Energon counts them."""
        total = 0
        for number, source in enumerate(self.sources):
            offsets = self.slices(number, rank, worker)
            once = self.mixing is None or (self.mixing.repeat and self.mixing.blend != "repetitions")
            repetitions = 1 if once or source.repetitions is None else source.repetitions
            total += int((offsets[-1] - offsets[0]) * repetitions)
        return total

    def batches(
        self, rank: int, *, batch_size: int, drop_last: bool = False, limit: int | None = None
    ) -> Iterator[list[EnergonSample]]:
        """Yield the batches of a rank, each from one worker, in turn; the last batch of each worker may be short.

        ``limit`` is the number of batches of the rank, which is divided over its workers.
        """
        workers = self.topology.workers_a_rank
        streams = [_batched(self.samples(rank, worker), batch_size, drop_last=drop_last) for worker in range(workers)]
        if limit is not None:
            streams = [
                islice(stream, limit // workers + (worker < limit % workers)) for worker, stream in enumerate(streams)
            ]
        return _in_turn(streams)

    def _source(self, number: int, rank: int, worker: int, seed: int, mixing: EnergonMixing) -> SliceReader | Repeated:
        source = self.sources[number]
        offsets = self.slices(number, rank, worker)
        reader = SliceReader(offsets, source, mixing.parallel_shard_iters, WorkerRng(seed))
        if mixing.blend == "repetitions" or not mixing.repeat:
            once = source.repetitions is None or source.repetitions == 1
            return reader if once else Repeated(reader, source.repetitions)
        return Repeated(reader, None)

    def _weight(self, source: EnergonSource, mixing: EnergonMixing) -> float:
        if mixing.blend == "weights":
            return source.weight
        if mixing.blend == "repetitions" or not mixing.repeat:
            return source.num_samples * (1 if source.repetitions is None else source.repetitions)
        return 1.0


class _Mixed:
    """Draws sources by weight until all are exhausted. A single source needs no draws."""

    def __init__(self, sources: Sequence[SliceReader | Repeated], weights: Sequence[float], rng: WorkerRng) -> None:
        self.sources = sources
        self._weights = weights
        self._rng = rng

    def __iter__(self) -> Iterator[EnergonSample]:
        if len(self.sources) == 1:
            yield from (EnergonSample(0, index) for index in self.sources[0])
            return
        streams = [iter(source) for source in self.sources]
        weights = [
            weight if source.num_samples else 0.0 for weight, source in zip(self._weights, self.sources, strict=True)
        ]
        sums = running_sums(weights)
        while sums[-1] > 0:
            number = self._rng.choose(sums)
            index = next(streams[number], None)
            if index is None:
                weights[number] = 0.0
                sums = running_sums(weights)
            else:
                yield EnergonSample(number, index)


def _for_ever(mixed: _Mixed) -> Iterator[EnergonSample]:
    while True:
        yield from mixed


def _buffered(stream: Iterator[EnergonSample], size: int, rng: WorkerRng) -> Iterator[EnergonSample]:
    buffer: list[EnergonSample] = []
    for sample in stream:
        buffer.append(sample)
        if len(buffer) >= size:
            yield buffer.pop(rng.below(len(buffer)))
    while buffer:
        yield buffer.pop(rng.below(len(buffer)))


def _batched(stream: Iterable[EnergonSample], size: int, *, drop_last: bool) -> Iterator[list[EnergonSample]]:
    batch: list[EnergonSample] = []
    for sample in stream:
        batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    if batch and not drop_last:
        yield batch


def _in_turn(streams: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yield one item of each stream in turn; exhausted streams are skipped."""
    alive = list(streams)
    while alive:
        for stream in tuple(alive):
            found = next(stream, None)
            if found is None:
                alive.remove(stream)
            else:
                yield found
