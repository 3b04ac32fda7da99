"""Energon's order: the samples of every rank and worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from headrace.config import check_choices
from headrace.errors import ConfigError
from headrace.plan.energon.sources import (
    EnergonSource,
    EnergonTopology,
    Repeated,
    SliceReader,
    slice_offsets,
    worker_bounds,
)
from headrace.plan.torch_draws import WorkerRng, running_sums

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
        check_choices(self)
        if self.blend == "weights" and not self.repeat:
            raise ConfigError("a blend by weights is endless: use repeat=True, or blend='repetitions'")


def worker_seed(worker: int, seed_offset: int = 0) -> int:
    """Return the seed of a worker from its number among all workers of the run: the last four bytes of a SHA-1."""
    return int.from_bytes(sha1(f"{worker},{seed_offset}".encode(), usedforsecurity=False).digest()[-4:], "big")


def seed_from_args(*args: object) -> int:
    """Return the seed for user code from its arguments as text: the first four bytes of a SHA-1."""
    text = "|".join(map(str, args))
    return int.from_bytes(sha1(text.encode(), usedforsecurity=False).digest()[:4], "big")


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

    def rank_samples(self, rank: int) -> Iterator[EnergonSample]:
        """Yield the samples that a rank gets without batches: those of its workers in turn."""
        return _in_turn([self.samples(rank, worker) for worker in range(self.topology.workers_a_rank)])

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
