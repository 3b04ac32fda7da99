"""The order of Aleph Alpha's scaling: epochs one after another, each shuffled by its own seed, samples in stream order.

Samples have exactly S + 1 tokens. Each begins at the last token of the one before, but within a sequence only: where
a sample ends with a sequence, the next begins with the next sequence. Sequences of fewer than two tokens are left out,
and so is what is left at the end of an epoch.

    sequences of 7 and 5 tokens     S = 4: samples [0, 5) [4, 9), the rest is short     S = 3: [0, 4) [3, 7) [7, 11)

Between two such ends the samples lie S apart. The next one is the next sequence end in the same place modulo S, so
with the ends sorted by that place it is one bisection away: about one in S ends is hit.

Source: Aleph-Alpha/scaling, ``transformer/data/text_dataset.py``, without ``only_full_sequences``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.indices import shuffle
from headrace.plan.megatron.pieces import SamplePieces
from headrace.plan.megatron.sampling import GPTSampling
from headrace.plan.megatron.stream import SequenceStream, checked_sizes


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
