"""Megatron's order of samples as one object: any sample of the run, from what is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.epochs import Epochs, count_epochs, reorders_when_extended, warn_when_extended
from headrace.plan.megatron.indices import Shuffled, document_index, shuffle_index
from headrace.plan.megatron.pieces import SamplePieces
from headrace.plan.megatron.sampling import GPTSampling
from headrace.plan.megatron.stream import SequenceStream, checked_sizes


class GPTOrder:
    """The samples of Megatron's ``GPTDataset``, sample by sample and in its order.

    Args:
        sizes: (sequences,) of integers, the tokens of each sequence of the split; kept as it is, not copied.
        sampling: what decides the order; any dialect but ``aleph_alpha`` (`order_samples` takes all).
        first_sequence: the number that the first of them has in its store.
        indices: Megatron's document and shuffle index, stored once by it or by us, instead of shuffling; kept as they
            are, views of mapped files too. Whether they belong to these data is the caller's to check.

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
        indices: tuple[NDArray[np.int32], Shuffled] | None = None,
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
        if indices is None:
            rng = np.random.RandomState(sampling.seed)
            separate = self.epochs.separate_last_epoch
            documents = document_index(range(len(sizes)), self.epochs.num_epochs, rng, separate)
            num_samples = self.epochs.num_samples
            self._shuffled = shuffle_index(self.epochs.num_before_last if separate else num_samples, num_samples, rng)
        else:
            documents, self._shuffled = indices
            documents = documents - first_sequence if first_sequence else documents
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
