"""Megatron's orders of samples, by dialect: Megatron's own, and that of Aleph Alpha's scaling.

Megatron's order of samples as one object: any sample of the run, from what is computed once.

The order of Aleph Alpha's scaling: epochs one after another, each shuffled by its own seed, samples in stream order.

Samples have exactly S + 1 tokens. Each begins at the last token of the one before, but within a sequence only: where
a sample ends with a sequence, the next begins with the next sequence. Sequences of fewer than two tokens are left out,
and so is what is left at the end of an epoch.

    sequences of 7 and 5 tokens     S = 4: samples [0, 5) [4, 9), the rest is short     S = 3: [0, 4) [3, 7) [7, 11)

Between two such ends the samples lie S apart. The next one is the next sequence end in the same place modulo S, so
with the ends sorted by that place it is one bisection away: about one in S ends is hit.

Source: Aleph-Alpha/scaling, ``transformer/data/text_dataset.py``, without ``only_full_sequences``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.indices import Shuffled, document_index, shuffle, shuffle_index
from headrace.plan.megatron.sampling import (
    Epochs,
    GPTSampling,
    count_epochs,
    reorders_when_extended,
    warn_when_extended,
)
from headrace.plan.megatron.stream import SamplePieces, SequenceStream, checked_sizes


class _Epoch(NamedTuple):
    """One epoch: its stream, and its runs of samples that lie S apart.

    ``first_samples`` and ``first_tokens`` (runs,) int64: the first sample of each run, and where it begins.
    """

    stream: SequenceStream
    num_samples: int
    first_samples: IntArray
    first_tokens: IntArray


class AlephAlphaOrder:
    """The samples of as many epochs as are wanted; the same interface as `GPTOrder`.

    Args:
        sizes: (sequences,) of integers, the tokens of each sequence; kept as it is, not copied.
        sampling: with the dialect ``aleph_alpha``. Epoch e is shuffled by seed + e.
        first_sequence: the number that the first of them has in its store.

    Every epoch is built at construction, O(sequences log sequences), and keeps 4.5 bytes a sequence. The order does not
    depend on the number of samples: a longer run goes on where a shorter one ended.

    Raises:
        ConfigError: no sample fits into an epoch, or the seed of an epoch is 2^32 or more.
    """

    def __init__(self, sizes: NDArray[np.integer[Any]], sampling: GPTSampling, *, first_sequence: int = 0) -> None:
        if sampling.dialect != "aleph_alpha":
            raise ConfigError(f"the dialect is {sampling.dialect!r}; AlephAlphaOrder is for 'aleph_alpha'")
        self.sampling = sampling
        self._sizes = checked_sizes(sizes)
        self._first_sequence = first_sequence
        self._epochs: list[_Epoch] = []
        wanted = sampling.num_samples
        found = 0
        while not self._epochs or (wanted is not None and found < wanted):
            epoch = self._epoch(len(self._epochs))
            if wanted and epoch.num_samples == 0:
                raise ConfigError(
                    f"an epoch has too few tokens for one sample of {sampling.sequence_length + 1:,}: {wanted:,} are"
                    " wanted; check data and split, or choose a smaller sequence_length"
                )
            self._epochs.append(epoch)
            found += epoch.num_samples
        self._ends = np.cumsum([epoch.num_samples for epoch in self._epochs], dtype=np.int64)

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        return f"AlephAlphaOrder({self.num_samples:,} samples, {self.num_epochs} epochs, {self.sampling!r})"

    @property
    def num_samples(self) -> int:
        """Of all epochs built: at least as many as were wanted."""
        return int(self._ends[-1])

    @property
    def num_epochs(self) -> int:
        """Epochs built."""
        return len(self._epochs)

    @property
    def num_bytes(self) -> int:
        """Of all arrays that are kept, the sizes not among them."""
        return sum(e.stream.num_bytes + e.first_samples.nbytes + e.first_tokens.nbytes for e in self._epochs)

    def locate(self, samples: IntArray) -> SamplePieces:
        """The pieces of (n,) int64 ``samples`` of the run. Raises ConfigError for one that is not of this run."""
        if samples.size and (samples.min() < 0 or samples.max() >= self.num_samples):
            raise ConfigError(
                f"samples of this run are 0 to {self.num_samples - 1:,}, found {samples.min():,} to {samples.max():,}"
            )
        epochs = np.searchsorted(self._ends, samples, side="right")
        parts, places = [], []
        for number in np.unique(epochs).tolist():
            place = np.flatnonzero(epochs == number)
            epoch = self._epochs[number]
            parts.append(self._within(epoch, samples[place] - (self._ends[number] - epoch.num_samples)))
            places.append(place)
        if len(parts) == 1:
            return parts[0]
        return _woven(parts, places, len(samples))

    def _within(self, epoch: _Epoch, samples: IntArray) -> SamplePieces:
        size = self.sampling.sequence_length
        run = np.searchsorted(epoch.first_samples, samples, side="right") - 1
        tokens = epoch.first_tokens[run] + (samples - epoch.first_samples[run]) * size
        first, (last, offset) = epoch.stream.find(tokens), epoch.stream.find(tokens + size)
        return epoch.stream.cut(first, (last, offset + 1), first_sequence=self._first_sequence)

    def _epoch(self, number: int) -> _Epoch:
        seed, size = self.sampling.seed + number, self.sampling.sequence_length
        if seed >= 1 << 32:
            raise ConfigError(f"epoch {number} is shuffled by seed {seed}, which is 2^32 or more; begin with a smaller")
        # They shuffle int64; the order is the same.
        documents = np.arange(len(self._sizes), dtype=np.int32)
        shuffle(documents, np.random.RandomState(seed))
        documents = documents[self._sizes[documents] >= 2]
        stream = SequenceStream(documents, self._sizes)
        ends = np.cumsum(self._sizes[documents], dtype=np.int64)
        # By place modulo S; the sort is stable, so by position among those of a place.
        by_place = np.argsort(ends % size, kind="stable")
        places, positions = (ends % size)[by_place], ends[by_place]
        first_samples, first_tokens = [0], [0]
        sample = token = 0
        while True:
            # A sample from t on ends at t + i * S + 1; that is a sequence end x if x = t + 1 modulo S.
            place = (token + 1) % size
            low, high = np.searchsorted(places, place, side="left"), np.searchsorted(places, place, side="right")
            at = low + int(np.searchsorted(positions[low:high], token + size + 1, side="left"))
            if at == high:
                break
            end = int(positions[at])
            sample += (end - 1 - token) // size
            token = end
            first_samples.append(sample)
            first_tokens.append(token)
        num_samples = sample + max(0, (stream.num_tokens - 1 - token) // size)
        return _Epoch(stream, num_samples, np.array(first_samples), np.array(first_tokens))


def _woven(parts: list[SamplePieces], places: list[IntArray], count: int) -> SamplePieces:
    """The pieces of samples that were looked up in several parts, in the order of all samples."""
    counts = np.zeros(count, dtype=np.int64)
    for part, place in zip(parts, places, strict=True):
        counts[place] = np.diff(part.offsets)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    columns = np.empty((3, int(offsets[-1])), dtype=np.int64)
    for part, place in zip(parts, places, strict=True):
        at = np.arange(part.offsets[-1]) + np.repeat(offsets[place] - part.offsets[:-1], np.diff(part.offsets))
        columns[:, at] = part.sequences, part.begins, part.lengths
    return SamplePieces(offsets, columns[0], columns[1], columns[2])


class GPTOrder:
    """The samples of Megatron's ``GPTDataset``, sample by sample and in its order.

    Args:
        sizes: (sequences,) of integers, the tokens of each sequence of the split; kept as it is, not copied.
        sampling: what decides the order; any dialect but ``aleph_alpha`` (`order_samples` takes all).
        first_sequence: the number that the first of them has in its store.

    Attributes:
        epochs: how many epochs there are, how many samples, and for which numbers of samples the order is the same.

    Construction shuffles epochs times sequences and all samples: 10 to 40 ns each, and 10 ns a sequence and epoch for
    the sums. Kept are 4.5 bytes a sequence and epoch, and 4 a sample.

    Raises:
        ConfigError: the sizes are none, or samples are wanted of no tokens.
    """

    def __init__(
        self,
        sizes: NDArray[np.integer[Any]],
        sampling: GPTSampling,
        *,
        first_sequence: int = 0,
    ) -> None:
        if sampling.dialect == "aleph_alpha":
            raise ConfigError("the dialect 'aleph_alpha' has an order of its own: AlephAlphaOrder, or order_samples")
        sizes = checked_sizes(sizes)
        if not 0 <= first_sequence <= (1 << 31) - len(sizes):
            raise ConfigError(f"sequences have numbers from 0 to 2^31 - 1, found {first_sequence} for the first")
        self.sampling = sampling
        self._first_sequence = first_sequence
        self.tokens_per_epoch = int(sizes.sum(dtype=np.int64))
        self.epochs: Epochs = count_epochs(self.tokens_per_epoch, sampling)
        rng = np.random.RandomState(sampling.seed)
        separate = self.epochs.separate_last_epoch
        documents = document_index(range(len(sizes)), self.epochs.num_epochs, rng, separate)
        num_samples = self.epochs.num_samples
        self._shuffled = shuffle_index(self.epochs.num_before_last if separate else num_samples, num_samples, rng)
        self._stream = SequenceStream(documents, sizes)

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        return f"GPTOrder({self.num_samples:,} samples, {self.num_epochs} epochs, {self.sampling!r})"

    @property
    def num_samples(self) -> int:
        """Samples of the run, at least as many as were wanted; NeoX leaves out the last one."""
        if self.sampling.dialect == "neox":
            return max(0, self.epochs.num_samples - 1)
        return self.epochs.num_samples

    @property
    def num_epochs(self) -> int:
        """Epochs that the samples are cut from."""
        return self.epochs.num_epochs

    @property
    def separate_last_epoch(self) -> bool:
        """Whether the last epoch is shuffled apart from those before it."""
        return self.epochs.separate_last_epoch

    @property
    def num_entries(self) -> int:
        """Of the document index: epochs times sequences."""
        return len(self._stream.entries)

    @property
    def num_bytes(self) -> int:
        """Of all arrays that are kept, the sizes not among them."""
        return self._stream.num_bytes + self._shuffled.nbytes

    def locate(self, samples: IntArray) -> SamplePieces:
        """The pieces of (n,) int64 ``samples`` of the run; about 1 to 2 us a sample in bulk.

        Raises:
            ConfigError: a sample is not of this run. (NeoX: from its last one on, indices wrap around as there.)
        """
        size, extra = self.sampling.sequence_length, int(self.sampling.add_extra_token)
        rows = self._shuffled[self._checked(samples)].astype(np.int64)
        entries, offsets = self._stream.rows(np.concatenate([rows, rows + 1]), size, extra)
        count = len(rows)
        last = entries[count:], offsets[count:] + extra
        return self._stream.cut((entries[:count], offsets[:count]), last, first_sequence=self._first_sequence)

    def reorders_when_extended(self, to_samples: int | None) -> bool:
        """Whether a run of ``to_samples`` goes through the samples of this one in another order."""
        return reorders_when_extended(self.tokens_per_epoch, self.sampling, self.sampling.num_samples, to_samples)

    def warn_if_extended_from(self, from_samples: int | None) -> None:
        """Warn with `ReorderWarning` if a run of ``from_samples``, which this one goes on, had another order."""
        warn_when_extended(self.tokens_per_epoch, self.sampling, from_samples, self.sampling.num_samples)

    @property
    def document_index(self) -> NDArray[np.int32]:
        """(num_epochs * sequences,) int32: Megatron's array, made anew."""
        return (self._stream.entries + self._first_sequence).astype(np.int32)

    def document_index_chunks(self, num_entries: int) -> Iterator[NDArray[np.int32]]:
        """The same, so many entries at a time."""
        for first in range(0, self.num_entries, num_entries):
            yield (self._stream.entries[first : first + num_entries] + self._first_sequence).astype(np.int32)

    @cached_property
    def shuffle_index(self) -> Shuffled:
        """(samples,) uint32, or int64 from 2^32 - 2 samples on: Megatron's array, read-only."""
        view = self._shuffled.view()
        view.flags.writeable = False
        return view

    @property
    def sample_index(self) -> NDArray[np.int32 | np.int64]:
        """(samples + 1, 2) int32 or int64: Megatron's array, made anew in one pass over the document index."""
        size, extra = self.sampling.sequence_length, int(self.sampling.add_extra_token)
        index = self._stream.sample_index(size, self.epochs.num_samples, extra)
        if self.sampling.dialect == "neox":
            # NeoX looks at the number of its elements where the others look at that of the documents.
            elements = 2 * ((self.num_epochs * self.tokens_per_epoch - 1) / size + 1)
            dtype: type[np.int32 | np.int64] = np.int32 if elements < (1 << 31) - 1 else np.int64
            index = index.astype(dtype, copy=False)
        return index

    def sample_index_chunks(self) -> Iterator[IntArray]:
        """The rows of the same, (k, 2) int64 at a time: those that begin in 65,536 entries of the document index."""
        size, extra = self.sampling.sequence_length, int(self.sampling.add_extra_token)
        for _, entries, offsets in self._stream.sample_rows(size, self.epochs.num_samples, extra):
            yield np.stack([entries, offsets], axis=1)

    def _checked(self, samples: IntArray) -> IntArray:
        if not samples.size:
            return samples
        low, high, count = int(samples.min()), int(samples.max()), self.epochs.num_samples
        wraps = self.sampling.dialect == "neox" and self.num_samples > 0
        if low < 0 or (high >= count and not wraps):
            raise ConfigError(f"samples of this run are 0 to {count - 1:,}, found {low:,} to {high:,}")
        if wraps and high >= count:
            return np.where(samples < count, samples, samples % self.num_samples)
        return samples


class SampleOrder(Protocol):
    """What a dataset asks of an order."""

    sampling: GPTSampling

    @property
    def num_samples(self) -> int:
        """Samples of the run."""

    @property
    def num_epochs(self) -> int:
        """Epochs that they are cut from."""

    @property
    def num_bytes(self) -> int:
        """Of all arrays that are kept, the sizes not among them."""

    def locate(self, samples: IntArray) -> SamplePieces:
        """The pieces of (n,) int64 ``samples`` of the run."""


def order_samples(
    sizes: NDArray[np.integer[Any]], sampling: GPTSampling, *, first_sequence: int = 0
) -> GPTOrder | AlephAlphaOrder:
    """The order of the samples over sequences of these sizes, of whichever dialect ``sampling`` names."""
    made = AlephAlphaOrder if sampling.dialect == "aleph_alpha" else GPTOrder
    return made(sizes, sampling, first_sequence=first_sequence)
