"""One source as a worker reads it: slices in a drawn order, several open at once."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor

import msgspec

from headrace.errors import ConfigError
from headrace.plan.energon.worker_rng import WorkerRng, running_sums
from headrace.plan.subset import Subset


class EnergonSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dataset of the mix.

    ``shard_counts``: the samples of each shard of the split, in its order, excluded samples among them. ``weight`` and
    ``repetitions`` are looked at where the mix is by weights, or by repetitions. ``shuffle_over_epochs``: slices are
    permuted over so many epochs together; -1 draws each anew, for ever. ``excluded``: samples that are passed over.
    """

    shard_counts: tuple[int, ...]
    subset: Subset | None = None
    weight: float = 1.0
    repetitions: int | float | None = None
    shuffle_over_epochs: int = 1
    excluded: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Raise ConfigError for counts below 0, and for weights, repetitions and epochs out of range."""
        if not self.shard_counts or min(self.shard_counts) < 0:
            raise ConfigError(f"shard_counts are one for each shard, from 0 on; found {self.shard_counts}")
        if not self.weight > 0 or (self.repetitions is not None and not self.repetitions > 0):
            raise ConfigError(f"weight and repetitions are above 0, found {self.weight} and {self.repetitions}")
        if self.shuffle_over_epochs != -1 and self.shuffle_over_epochs < 1:
            raise ConfigError(f"shuffle_over_epochs is at least 1, or -1, found {self.shuffle_over_epochs}")

    @property
    def num_samples(self) -> int:
        """Of all shards; Energon takes neither subset nor excluded samples off, for shares and for whose turn it is."""
        return sum(self.shard_counts)


class SliceReader:
    """The slices of one worker; a pass that was left in its middle goes on there.

    ``offsets`` as from `slice_offsets`. Without a generator slices come in order, one after another.
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
        # Of each open slice its next sample and its end; an end of -1 where none is open.
        self._next = [-1] * self._open_slices
        self._ends = [-1] * self._open_slices
        self._lengths = [0.0] * self._open_slices

    @property
    def num_samples(self) -> int:
        """Of a pass, excluded ones among them."""
        return self._offsets[-1] - self._offsets[0]

    def __iter__(self) -> Iterator[int]:
        """The samples of a pass, or of the rest of one."""
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
        """Draw the order of the slices, and open the first ones."""
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
        """The next slice in the place of one that is through, if there is one."""
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
    """Passes of a reader: for ever, or so many, the last one in part; what a worker has is rounded down."""

    def __init__(self, reader: SliceReader, repetitions: int | float | None) -> None:
        self._reader = reader
        self._repetitions = repetitions

    @property
    def num_samples(self) -> int:
        """0 for a worker without samples."""
        return self._reader.num_samples

    def __iter__(self) -> Iterator[int]:
        """All passes. What a last pass in part leaves is where the next one begins."""
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
