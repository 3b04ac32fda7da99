"""Megatron's orders of samples, by dialect: `GPTOrder` for Megatron's own, `AlephAlphaOrder` for Aleph Alpha's scaling.

Both find the tokens of any sample of a run from arrays that are computed once.

In the order of Aleph Alpha's scaling, epochs follow each other, each is shuffled by its own seed, and samples are in
the order of the token stream. Samples have exactly S + 1 tokens. Each begins at the last token of the one before, but
only within a sequence: if a sample ends with a sequence, the next one begins with the next sequence. Sequences of fewer
than two tokens are left out, and so is the rest at the end of an epoch.

    sequences of 7 and 5 tokens     S = 4: samples [0, 5) [4, 9), the rest is short     S = 3: [0, 4) [3, 7) [7, 11)

Between two such ends, samples lie S tokens apart. The next such end is the next end of a sequence at the same place
modulo S. With the ends sorted by that place it is found by one bisection; about one in S ends is such an end.

Source: Aleph-Alpha/scaling, ``transformer/data/text_dataset.py``, without ``only_full_sequences``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.indices import (
    SamplePieces,
    SequenceStream,
    Shuffled,
    build_doc_idx,
    build_shuffle_idx,
    checked_sizes,
)
from headrace.plan.megatron.sampling import (
    Epochs,
    GPTSampling,
    ReorderWarning,
    count_epochs,
)


class _Epoch(NamedTuple):
    """One epoch: its stream, and its runs of samples that lie S tokens apart.

    ``first_samples`` and ``first_tokens``, (num_runs,) int64: the first sample of each run, and where it begins.
    """

    stream: SequenceStream
    num_samples: int
    first_samples: IntArray
    first_tokens: IntArray


class AlephAlphaOrder:
    """The order of Aleph Alpha's scaling, for as many epochs as are needed; it has the same interface as `GPTOrder`.

    Args:
        sizes: (num_sequences,) integers, the tokens of each sequence; not copied.
        sampling: must have the dialect ``aleph_alpha``. Epoch e is shuffled by seed + e.
        first_sequence: the number of the first sequence in its store.

    All epochs are built at construction, O(sequences log sequences) each, and take 4.5 bytes a sequence. The order does
    not depend on the number of samples: a longer run continues where a shorter one ended.

    Raises:
        ConfigError: no sample fits into an epoch, or the seed of an epoch is 2^32 or more.

    Example:
        >>> megatron = headrace.plan.megatron
        >>> sampling = megatron.GPTSampling(sequence_length=4, num_samples=2, seed=1, dialect="aleph_alpha")
        >>> order = megatron.AlephAlphaOrder(np.array([7, 5]), sampling)
        >>> order.locate(np.array([0])).num_tokens.tolist()
        [5]
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
                    f"an epoch has too few tokens for one sample of {sampling.sequence_length + 1:,} tokens, but"
                    f" {wanted:,} samples are wanted; check the data and the split, or choose a smaller sequence_length"
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
        """The number of samples in all epochs, at least as many as were wanted."""
        return int(self._ends[-1])

    @property
    def num_epochs(self) -> int:
        """The number of epochs that were built."""
        return len(self._epochs)

    @property
    def num_bytes(self) -> int:
        """The size in bytes of all arrays that are kept, without the sizes of the sequences."""
        return sum(e.stream.num_bytes + e.first_samples.nbytes + e.first_tokens.nbytes for e in self._epochs)

    def locate(self, samples: IntArray) -> SamplePieces:
        """Return the pieces of (n,) int64 ``samples`` of the run.

        Raises:
            ConfigError: a sample is not in this run.
        """
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
            raise ConfigError(
                f"epoch {number} is shuffled by seed {seed}, which is 2^32 or more; choose a smaller seed"
            )
        # Aleph Alpha's scaling shuffles int64; the order is the same.
        documents = np.arange(len(self._sizes), dtype=np.int32)
        np.random.RandomState(seed).shuffle(documents)
        documents = documents[self._sizes[documents] >= 2]
        stream = SequenceStream(documents, self._sizes)
        ends = np.cumsum(self._sizes[documents], dtype=np.int64)
        # Sorted by place modulo S. The sort is stable, so ends at the same place are in the order of their positions.
        by_place = np.argsort(ends % size, kind="stable")
        places, positions = (ends % size)[by_place], ends[by_place]
        first_samples, first_tokens = [0], [0]
        sample = token = 0
        while True:
            # Samples from t on end at t + i * S + 1, which is the end x of a sequence if x = t + 1 modulo S.
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
    """Combine the pieces of samples that were looked up in several parts, in the order of all samples."""
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
    """The order of the samples of Megatron's ``GPTDataset``.

    Args:
        sizes: (num_sequences,) integers, the tokens of each sequence of the split; not copied.
        sampling: the options that decide the order, with any dialect except ``aleph_alpha`` (`order_samples` accepts
            all).
        first_sequence: the number of the first sequence in its store.

    Attributes:
        epochs: how many epochs there are, how many samples, and for which numbers of samples the order is the same.

    Construction shuffles epochs times sequences and all samples, in 10 to 40 ns each, and takes 10 ns a sequence and
    epoch for the sums. The order keeps 4.5 bytes a sequence and epoch, and 4 bytes a sample.

    Raises:
        ConfigError: the sizes are not integers of at least 0, or samples are wanted but there are no tokens.

    Example:
        >>> sampling = headrace.plan.megatron.GPTSampling(sequence_length=30, num_samples=8, seed=1)
        >>> order = headrace.plan.megatron.GPTOrder(np.array([20, 50, 60, 30, 100, 5]), sampling)
        >>> order.num_samples, order.locate(np.array([0, 1])).num_tokens.tolist()
        (8, [31, 31])
    """

    def __init__(
        self,
        sizes: NDArray[np.integer[Any]],
        sampling: GPTSampling,
        *,
        first_sequence: int = 0,
    ) -> None:
        if sampling.dialect == "aleph_alpha":
            raise ConfigError(
                "the dialect 'aleph_alpha' has an order of its own: use AlephAlphaOrder, or order_samples"
            )
        sizes = checked_sizes(sizes)
        if not 0 <= first_sequence <= (1 << 31) - len(sizes):
            raise ConfigError(
                f"sequences must have numbers from 0 to 2^31 - 1; found {first_sequence} for the first one"
            )
        self.sampling = sampling
        self._first_sequence = first_sequence
        self.tokens_per_epoch = int(sizes.sum(dtype=np.int64))
        self.epochs: Epochs = count_epochs(self.tokens_per_epoch, sampling)
        rng = np.random.RandomState(sampling.seed)
        separate = self.epochs.separate_last_epoch
        sequences = np.arange(len(sizes), dtype=np.int32)
        documents = build_doc_idx(sequences, self.epochs.num_epochs, rng, separate)
        num_samples = self.epochs.num_samples
        self._shuffled = build_shuffle_idx(self.epochs.num_before_last if separate else num_samples, num_samples, rng)
        self._stream = SequenceStream(documents, sizes)

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        return f"GPTOrder({self.num_samples:,} samples, {self.num_epochs} epochs, {self.sampling!r})"

    @property
    def num_samples(self) -> int:
        """The number of samples in the run, at least as many as were wanted; NeoX leaves out the last one."""
        if self.sampling.dialect == "neox":
            return max(0, self.epochs.num_samples - 1)
        return self.epochs.num_samples

    @property
    def num_epochs(self) -> int:
        """The number of epochs from which the samples are cut."""
        return self.epochs.num_epochs

    @property
    def separate_last_epoch(self) -> bool:
        """Whether the last epoch is shuffled separately from those before it."""
        return self.epochs.separate_last_epoch

    @property
    def num_entries(self) -> int:
        """The number of entries in the document index: epochs times sequences."""
        return len(self._stream.entries)

    @property
    def num_bytes(self) -> int:
        """The size in bytes of all arrays that are kept, without the sizes of the sequences."""
        return self._stream.num_bytes + self._shuffled.nbytes

    def locate(self, samples: IntArray) -> SamplePieces:
        """Return the pieces of (n,) int64 ``samples`` of the run. About 1 to 2 us a sample in bulk.

        With the dialect ``neox``, numbers of samples beyond the end wrap around, as in GPT-NeoX.

        Raises:
            ConfigError: a sample is not in this run.
        """
        size, extra = self.sampling.sequence_length, int(self.sampling.add_extra_token)
        rows = self._shuffled[self._checked(samples)].astype(np.int64)
        entries, offsets = self._stream.rows(np.concatenate([rows, rows + 1]), size, extra)
        count = len(rows)
        last = entries[count:], offsets[count:] + extra
        return self._stream.cut((entries[:count], offsets[:count]), last, first_sequence=self._first_sequence)

    def reorders_when_extended(self, to_samples: int | None) -> bool:
        """Return whether the samples of this run come in another order in a run of ``to_samples``."""
        return _shape(self.epochs) != _shape(self._epochs_of(to_samples))

    def warn_if_extended_from(self, from_samples: int | None) -> None:
        """Warn with `ReorderWarning` if a run of ``from_samples``, which this run extends, had another order."""
        first = self._epochs_of(from_samples)
        if _shape(first) == _shape(self.epochs):
            return
        warnings.warn(
            f"Megatron's order depends on the number of samples: {_in_words(from_samples)} have the order of"
            f" {_shape(first)}, but {_in_words(self.sampling.num_samples)} that of {_shape(self.epochs)}. So every"
            " sample moves, and a run that is extended repeats some samples and misses others. The first order holds"
            f" for {first.same_order.start:,} to {first.same_order.stop - 1:,} samples: stay within these, or use"
            " Headrace's own order, which does not change when a run is extended",
            ReorderWarning,
            stacklevel=2,
        )

    def _epochs_of(self, num_samples: int | None) -> Epochs:
        return count_epochs(self.tokens_per_epoch, msgspec.structs.replace(self.sampling, num_samples=num_samples))

    @property
    def document_index(self) -> NDArray[np.int32]:
        """Megatron's array, (num_epochs * num_sequences,) int32, made anew on each access."""
        return (self._stream.entries + self._first_sequence).astype(np.int32)

    def document_index_chunks(self, num_entries: int) -> Iterator[NDArray[np.int32]]:
        """Yield the document index, ``num_entries`` entries at a time."""
        for first in range(0, self.num_entries, num_entries):
            yield (self._stream.entries[first : first + num_entries] + self._first_sequence).astype(np.int32)

    @cached_property
    def shuffle_index(self) -> Shuffled:
        """Megatron's array, (num_samples,) uint32, or int64 from 2^32 - 2 samples on; read-only."""
        view = self._shuffled.view()
        view.flags.writeable = False
        return view

    @property
    def sample_index(self) -> NDArray[np.int32 | np.int64]:
        """Megatron's array, (num_samples + 1, 2) int32 or int64, made anew in one pass over the document index."""
        size, extra = self.sampling.sequence_length, int(self.sampling.add_extra_token)
        index = self._stream.sample_index(size, self.epochs.num_samples, extra)
        if self.sampling.dialect == "neox":
            # NeoX chooses the dtype by the number of elements, the others by the number of documents.
            elements = 2 * ((self.num_epochs * self.tokens_per_epoch - 1) / size + 1)
            dtype: type[np.int32 | np.int64] = np.int32 if elements < (1 << 31) - 1 else np.int64
            index = index.astype(dtype, copy=False)
        return index

    def sample_index_chunks(self) -> Iterator[IntArray]:
        """Yield the sample index as (k, 2) int64, the rows of 65,536 entries of the document index at a time."""
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


def order_samples(
    sizes: NDArray[np.integer[Any]], sampling: GPTSampling, *, first_sequence: int = 0
) -> GPTOrder | AlephAlphaOrder:
    """Return the order of samples over sequences of these sizes, for the dialect of ``sampling``."""
    kind = AlephAlphaOrder if sampling.dialect == "aleph_alpha" else GPTOrder
    return kind(sizes, sampling, first_sequence=first_sequence)


def _in_words(num_samples: int | None) -> str:
    return "one epoch" if num_samples is None else f"{num_samples:,} samples"


def _shape(epochs: Epochs) -> str:
    separate = ", the last one shuffled separately" if epochs.separate_last_epoch else ""
    return f"{epochs.num_epochs} epoch{'s' if epochs.num_epochs > 1 else ''}{separate}"
