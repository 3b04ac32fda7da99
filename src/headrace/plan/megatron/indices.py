"""The three indices of Megatron's ``GPTDataset`` as arrays.

One ``numpy.random.RandomState`` shuffles them, in this order; NumPy promises that its stream never changes:

    rng = numpy.random.RandomState(seed)
    build_doc_idx(...)      E copies of the documents, shuffled together; a separate last epoch is shuffled apart
    build_sample_idx(...)   no random numbers
    build_shuffle_idx(...)  the samples, shuffled together; those of a separate last epoch are shuffled apart

The token stream of a document index says which token lies in which sequence, without prefix sums for every entry. It
keeps the entries, and the sum of the sizes up to every 16th entry. A token is found by bisection in the
sums, and then by adding up the sizes of 16 entries. This takes 4.5 bytes an entry for an int32 index; full prefix sums
would take 12.

    entries 2 1 5 0 | 4 3     sizes 60 50 5 20 | 100 30     sums every 4: 0 135 265     token 140: block 1, entry 4, 5

A *piece* is a run of tokens in one sequence that belongs to a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.kernels import LONG, compiled, is_loaded, shuffle_kernel, sums_kernel
from headrace.plan.megatron.sampling import samples_in


class SamplePieces(NamedTuple):
    """The pieces of some samples, in order; sample i has the pieces from ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` is (num_samples + 1,) int64, and the others are (num_pieces,) int64. A piece holds the tokens
    ``[begin, begin + length)`` of its sequence. They are the pieces that Megatron reads, including those without
    tokens: empty sequences within a sample, and, without an extra token, the end of the sequence before it.
    """

    offsets: IntArray
    sequences: IntArray
    begins: IntArray
    lengths: IntArray

    @property
    def num_tokens(self) -> IntArray:
        """(num_samples,) int64: the tokens of each sample, S + e, or fewer in a partial last one."""
        ends = np.zeros(len(self.lengths) + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=ends[1:])
        tokens: IntArray = np.diff(ends[self.offsets])
        return tokens


BLOCK = 16
"""The number of entries between two sums."""
_CHUNK = BLOCK << 12
"""How many entries a pass reads at a time, so that they fit into the processor's cache."""
_LOOKUPS = 1 << 13
"""How many tokens are looked up at a time, with 16 entries each."""

Integers = NDArray[np.integer[Any]]


class SequenceStream:
    """Sequences of ``sizes[entries[0]], sizes[entries[1]], ...`` tokens, one after another.

    ``entries``, (n,) integers, and ``sizes``, (num_sequences,) integers, are not copied; they may be views of a mapped
    file. Construction takes one pass over the entries, about 10 ns each.
    """

    def __init__(self, entries: Integers, sizes: Integers) -> None:
        self.entries = entries
        self._sizes = sizes
        self._sums = np.zeros(-(-len(entries) // BLOCK) + 1, dtype=np.int64)
        kernel = compiled(sums_kernel) if len(entries) >= LONG and is_loaded() else None
        if kernel is not None:
            kernel(entries, sizes, BLOCK, self._sums)
        else:
            self._sum()
        self.num_tokens = int(self._sums[-1])

    @property
    def num_bytes(self) -> int:
        """The size in bytes of what is kept, without the sizes of the sequences."""
        return self.entries.nbytes + self._sums.nbytes

    def _sum(self) -> None:
        """Do the same as `sums_kernel`, a chunk at a time."""
        # The arrays of an .idx file are unaligned, and indexing into unaligned arrays is several times slower.
        aligned = self._sizes if self._sizes.flags.aligned else self._sizes.copy()
        total = 0
        for first in range(0, len(self.entries), _CHUNK):
            # Every entry is in range; "clip" only saves NumPy the check.
            ends = np.cumsum(aligned.take(self.entries[first : first + _CHUNK], mode="clip"), dtype=np.int64)
            ends += total
            total = int(ends[-1])
            block = first // BLOCK + 1
            inner = ends[BLOCK - 1 :: BLOCK]
            self._sums[block : block + len(inner)] = inner
        self._sums[-1] = total

    def find(self, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """Return the entry in which each of (n,) int64 ``tokens`` lies, and its offset there; both (n,) int64.

        Tokens run from 0 to ``num_tokens`` - 1. O(log entries), about 0.5 us a token in bulk.
        """
        found = np.empty_like(tokens), np.empty_like(tokens)
        for first in range(0, len(tokens), _LOOKUPS):
            part = slice(first, first + _LOOKUPS)
            found[0][part], found[1][part] = self._find(tokens[part])
        return found

    def _find(self, tokens: IntArray) -> tuple[IntArray, IntArray]:
        blocks = np.searchsorted(self._sums, tokens, side="right") - 1
        entries = blocks[:, None] * BLOCK + np.arange(BLOCK)
        # Beyond the end the last entry is repeated. No token lies behind it, so the repeated ones are never counted.
        np.minimum(entries, len(self.entries) - 1, out=entries)
        sizes = self._sizes[self.entries[entries]]
        ends = np.cumsum(sizes, axis=1, dtype=np.int64)
        within = tokens - self._sums[blocks]
        passed: IntArray = np.count_nonzero(ends <= within[:, None], axis=1)
        rows = np.arange(len(tokens))
        return blocks * BLOCK + passed, within - (ends[rows, passed] - sizes[rows, passed])

    def rows(self, samples: IntArray, sequence_length: int, extra: int) -> tuple[IntArray, IntArray]:
        """Return rows of the sample index, two (n,) int64: the entry and the offset where each sample begins.

        As in Megatron, sample k begins in the entry that holds the last token of sample k - 1. With an extra token
        (``extra`` 1) this is its own first token k * S. Without one it is the token before, so that the offset may
        equal the size of the entry. Beyond the end of the stream, the result is the end.
        """
        tokens = samples * sequence_length - (1 - extra)
        last = self.num_tokens - 1
        entries, offsets = self.find(np.clip(tokens, 0, last))
        offsets += 1 - extra
        if not extra:
            self._past_the_end(entries, offsets, tokens > last)
        entries[samples == 0] = 0
        offsets[samples == 0] = 0
        return entries, offsets

    def sample_index(self, sequence_length: int, num_samples: int, extra: int) -> NDArray[np.int32 | np.int64]:
        """Return (num_samples + 1, 2): the `rows` of all samples and of the end of the last one.

        Takes one pass over the entries. The dtype is int32 if the number of entries fits into it, else int64.
        """
        dtype: type[np.int32 | np.int64] = np.int32 if len(self.entries) < 1 << 31 else np.int64
        index = np.zeros((num_samples + 1, 2), dtype=dtype)
        for begin, entries, offsets in self.sample_rows(sequence_length, num_samples, extra):
            index[begin : begin + len(entries), 0] = entries
            index[begin : begin + len(entries), 1] = offsets
        return index

    def sample_rows(
        self, sequence_length: int, num_samples: int, extra: int
    ) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Yield the sample index in parts: the number of the first row, and (k,) int64 entries and offsets."""
        yield 0, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        end = 1
        for first in range(0, len(self.entries), _CHUNK):
            begin_token = int(self._sums[first // BLOCK])
            sizes = self._sizes[self.entries[first : first + _CHUNK]]
            ends = np.cumsum(sizes, dtype=np.int64)
            begin, end_token = end, begin_token + int(ends[-1])
            # The samples whose token k * S - (1 - extra) lies before the end of this chunk.
            end = min(num_samples + 1, max(1, -(-(end_token + 1 - extra) // sequence_length)))
            tokens = np.arange(begin, end, dtype=np.int64) * sequence_length - (1 - extra) - begin_token
            within = np.searchsorted(ends, tokens, side="right")
            yield begin, first + within, tokens - (ends[within] - sizes[within]) + (1 - extra)
        if end <= num_samples:
            past = np.full(1, num_samples, dtype=np.int64)
            entry, offset = self.rows(past, sequence_length, extra)
            yield end, np.repeat(entry, num_samples + 1 - end), np.repeat(offset, num_samples + 1 - end)

    def cut(
        self, first: tuple[IntArray, IntArray], last: tuple[IntArray, IntArray], *, first_sequence: int
    ) -> SamplePieces:
        """Return the pieces from (entry, offset) ``first`` to (entry, end within it) ``last``; all are (n,) int64."""
        counts = last[0] - first[0] + 1
        offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        entries = np.arange(offsets[-1], dtype=np.int64)
        entries += np.repeat(first[0] - offsets[:-1], counts)
        sequences = self.entries[entries].astype(np.int64)
        lengths = self._sizes[sequences].astype(np.int64)
        lengths[offsets[1:] - 1] = last[1]
        begins = np.zeros_like(lengths)
        begins[offsets[:-1]] = first[1]
        lengths -= begins
        sequences += first_sequence
        return SamplePieces(offsets, sequences, begins, lengths)

    def _past_the_end(self, entries: IntArray, offsets: IntArray, past: NDArray[np.bool_]) -> None:
        """Without an extra token, Megatron ends in the very last entry, even if it is empty."""
        if past.any():
            entries[past] = len(self.entries) - 1
            offsets[past] = int(self._sizes[self.entries[-1]])


def checked_sizes(sizes: Integers) -> Integers:
    """Return the sizes of the sequences as an array of integers.

    Raises:
        ConfigError: the sizes are not integers or not one-dimensional, one is negative, or there are 2^31 or more.
    """
    sizes = np.asarray(sizes)
    if sizes.ndim != 1 or (sizes.dtype.kind not in "iu" and len(sizes)):
        raise ConfigError(
            f"sizes must be a (num_sequences,) array of integers, found {sizes.dtype} of shape {sizes.shape}"
        )
    if len(sizes) >= 1 << 31:
        raise ConfigError(
            f"Megatron's order allows fewer than 2^31 sequences, found {len(sizes):,}; divide the data into several "
            "datasets"
        )
    if len(sizes) and int(sizes.min()) < 0:
        raise ConfigError(f"sequence {int(sizes.argmin())} has {int(sizes.min())} tokens; check the .idx file")
    # NumPy adds int64 and uint64 as floats, and makes an array of floats from an empty list.
    return sizes.astype(np.int64) if sizes.dtype == np.uint64 or not len(sizes) else sizes


_WORDS = 1 << 16
_PLACES = 256
LONG_ENOUGH_TO_IMPORT = 1 << 24
"""From this many entries on, the compiled shuffle is worth the import of numba, a third of a second."""

Shuffled = NDArray[np.uint32 | np.int64]


def shuffle(array: NDArray[Any], rng: np.random.RandomState) -> None:
    """Do ``rng.shuffle(array)`` for an (n,) array of integers, with the same result and the same new state of ``rng``.

    Takes 10 to 15 ns an entry with numba and 20 to 40 ns with NumPy alone, depending on how much of the array fits into
    the caches.
    """
    size = len(array)
    if size < (LONG if is_loaded() else LONG_ENOUGH_TO_IMPORT) or size > 1 << 32:
        rng.shuffle(array)
        return
    kernel = compiled(shuffle_kernel)
    if kernel is None:
        rng.shuffle(array)
        return
    # The elements are only moved, so one type is enough, and only one kernel is compiled for 32 bits.
    shuffle_with(kernel, array.view(np.int32) if array.itemsize == 4 else array, rng)


def shuffle_with(kernel: Any, array: NDArray[Any], rng: np.random.RandomState) -> None:
    """Shuffle at most 2^32 entries with `shuffle_kernel`, compiled or not."""
    last = len(array) - 1
    places = np.empty(_PLACES, dtype=np.int64)
    while last > 0:
        before = rng.get_state(legacy=False)
        # A word is used with a probability of at least one half.
        words = rng.randint(0, 1 << 32, size=min(_WORDS, 2 * last + 64), dtype=np.uint32)
        last, used = kernel(array, last, words, places)
    if len(array) > 1:
        # Put the generator back to the state after the last word that was used.
        rng.set_state(before)
        rng.randint(0, 1 << 32, size=used, dtype=np.uint32)


IntegerValues = NDArray[np.integer[Any]] | Sequence[int]


def build_doc_idx(
    documents: IntegerValues, num_epochs: int, np_rng: np.random.RandomState, separate_last_epoch: bool
) -> NDArray[np.int32]:
    """Return (num_epochs * num_documents,) int32: the documents of all epochs, shuffled together.

    With ``separate_last_epoch`` the last epoch is shuffled separately and comes after the others.

    Raises:
        ConfigError: ``num_epochs`` is below 1, or the number of a document is 2^31 or more.

    >>> import numpy as np
    >>> build_doc_idx([0, 1, 2], 2, np.random.RandomState(1), separate_last_epoch=True).tolist()
    [0, 2, 1, 1, 2, 0]
    """
    if num_epochs < 1:
        raise ConfigError(f"num_epochs is {num_epochs}; it must be at least 1")
    first = _integers(documents)
    if first.size and int(first.max()) >= 1 << 31:
        raise ConfigError(
            "Megatron's document index is int32, so the numbers of sequences must be below 2^31: divide the data into"
            " several datasets"
        )
    index = np.tile(first.astype(np.int32, copy=False), num_epochs)
    before_last = len(index) - len(first) if separate_last_epoch else 0
    shuffle(index[:before_last], np_rng)
    shuffle(index[before_last:], np_rng)
    return index


def build_sample_idx(
    sizes: IntegerValues,
    doc_idx: IntegerValues,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: bool = True,
    *,
    float32_ceil: bool = False,
) -> NDArray[np.int32 | np.int64]:
    """Return (num_samples + 1, 2): the place in ``doc_idx`` where each sample begins, and the offset in that document.

    Args:
        sizes: the tokens of each document.
        doc_idx: the documents of all epochs, in order.
        seq_length: the tokens of a sample, without the extra one.
        num_epochs: how many epochs ``doc_idx`` holds.
        tokens_per_epoch: the tokens of one epoch.
        drop_last_partial_sequence: whether a last sample that is too short is left out.
        add_extra_token_to_sequence: whether samples have ``seq_length + 1`` tokens, and share one with the next.
        float32_ceil: round the number of samples up in float32, as Megatron's compiled helper does when it keeps the
            partial sample. With many tokens the number is then wrong.

    The dtype is int32 if the length of ``doc_idx`` fits into it, else int64. Takes one pass and no random numbers.

    Raises:
        ConfigError: a length or number is out of range, or ``doc_idx`` has fewer tokens than all epochs together.

    >>> sizes = [20, 50, 60, 30, 100, 5]
    >>> build_sample_idx(sizes, [0, 1, 2, 3, 4, 5], seq_length=30, num_epochs=1, tokens_per_epoch=sum(sizes))
    array([[ 0,  0],
           [ 1, 10],
           [ 1, 40],
           [ 2, 20],
           [ 2, 50],
           [ 3, 20],
           [ 4, 20],
           [ 4, 50],
           [ 4, 80]], dtype=int32)
    """
    if seq_length < 1 or num_epochs < 1 or tokens_per_epoch < 1:
        raise ConfigError(
            f"seq_length, num_epochs and tokens_per_epoch must be at least 1, found {seq_length}, {num_epochs} and"
            f" {tokens_per_epoch}"
        )
    lengths, entries = checked_sizes(_integers(sizes)), _integers(doc_idx)
    if len(entries) and not 0 <= int(entries.min()) <= int(entries.max()) < len(lengths):
        raise ConfigError(
            f"doc_idx holds documents {entries.min()} to {entries.max()}, but there are {len(lengths):,} sizes"
        )
    stream = SequenceStream(entries, lengths)
    if stream.num_tokens < num_epochs * tokens_per_epoch:
        raise ConfigError(
            f"the documents of doc_idx have {stream.num_tokens:,} tokens, but {num_epochs} epochs of"
            f" {tokens_per_epoch:,} tokens have {num_epochs * tokens_per_epoch:,}: doc_idx must hold the documents of"
            " all epochs"
        )
    extra = int(add_extra_token_to_sequence)
    num_samples = samples_in(
        num_epochs * tokens_per_epoch - extra, seq_length, drop_last_partial_sequence, float32_ceil
    )
    return stream.sample_index(seq_length, num_samples, extra)


def build_shuffle_idx(num_samples: int, total_size: int, np_rng: np.random.RandomState) -> Shuffled:
    """Return (total_size,) uint32: the first ``num_samples`` numbers shuffled, then those after them shuffled.

    From 2^32 - 2 numbers on, the dtype is int64. If ``num_samples`` is the number of samples in all epochs but the
    last, the samples of the last epoch come last, and a run that stops early leaves out only some of these.

    >>> import numpy as np
    >>> build_shuffle_idx(8, 12, np.random.RandomState(0)).tolist()
    [6, 2, 1, 7, 3, 0, 5, 4, 11, 8, 10, 9]
    """
    if not 0 <= num_samples <= total_size:
        raise ConfigError(f"num_samples is {num_samples}; allowed are 0 to total_size, which is {total_size}")
    index: Shuffled = np.arange(total_size, dtype=np.uint32 if total_size < (1 << 32) - 2 else np.int64)
    shuffle(index[:num_samples], np_rng)
    shuffle(index[num_samples:], np_rng)
    return index


def _integers(values: IntegerValues) -> NDArray[np.integer[Any]]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ConfigError(f"sizes and documents must be integers, found {array.dtype}")
    return array if array.size else np.zeros(0, dtype=np.int64)
