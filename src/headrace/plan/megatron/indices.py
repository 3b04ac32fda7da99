"""The three indices as arrays, and the one ``numpy.random.RandomState`` that shuffles them, in this order of use.

    rng = numpy.random.RandomState(seed)
    document_index(...)     E copies of the documents, shuffled together; the last one apart if it is separate
    sample_index(...)       no random numbers
    shuffle_index(...)      the samples, shuffled together; those of a separate last epoch apart

NumPy promises that the stream of RandomState never changes.

The three builders under the names that they have in Megatron-LM, for lists and for arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.megatron.kernels import LONG, compiled, is_loaded, shuffle_kernel
from headrace.plan.megatron.sampling import samples_in
from headrace.plan.megatron.stream import SequenceStream, checked_sizes

_WORDS = 1 << 16
_PLACES = 256
LONG_ENOUGH_TO_IMPORT = 1 << 24
"""Entries from which on the compiled shuffle is worth the import of numba, a third of a second."""

Shuffled = NDArray[np.uint32 | np.int64]


def document_index(
    documents: NDArray[np.integer[Any]] | range,
    num_epochs: int,
    rng: np.random.RandomState,
    separate_last_epoch: bool,
) -> NDArray[np.int32]:
    """(num_epochs * documents,) int32: ``documents`` repeated and shuffled, built in place: 4 bytes an entry.

    Raises:
        ConfigError: a document has a number of 2^31 or more, which Megatron's int32 cannot hold.
    """
    size = len(documents)
    if size and int(max(documents[-1], documents[0]) if isinstance(documents, range) else documents.max()) >= 1 << 31:
        raise ConfigError("Megatron's document index is int32: sequences have numbers below 2^31; split the data")
    index = np.empty(num_epochs * size, dtype=np.int32)
    if isinstance(documents, range):
        index[:size] = np.arange(documents.start, documents.stop, documents.step, dtype=np.int32)
    else:
        index[:size] = documents
    for epoch in range(1, num_epochs):
        index[epoch * size : (epoch + 1) * size] = index[:size]
    if separate_last_epoch and num_epochs > 1:
        shuffle(index[:-size], rng)
        shuffle(index[-size:], rng)
    else:
        shuffle(index, rng)
    return index


def shuffle_index(num_first: int, num_samples: int, rng: np.random.RandomState) -> Shuffled:
    """(num_samples,) uint32: the first ``num_first`` numbers shuffled, then the others; int64 from 2^32 - 2 on."""
    index: Shuffled
    if num_samples < (1 << 32) - 2:
        index = np.arange(num_samples, dtype=np.uint32)
    else:
        index = np.arange(num_samples, dtype=np.int64)
    shuffle(index[:num_first], rng)
    if num_first < num_samples:
        shuffle(index[num_first:], rng)
    return index


def sample_index(
    sizes_of_document_index: NDArray[np.integer[Any]],
    *,
    sequence_length: int,
    num_samples: int,
    add_extra_token: bool,
) -> NDArray[np.int32 | np.int64]:
    """(num_samples + 1, 2): the entry of the document index where each sample begins, and the offset within it.

    ``sizes_of_document_index`` is (entries,): the tokens of each entry. The last row is where the last sample ends.
    int32 as long as the number of entries fits in. One pass, in closed form.
    """
    sizes = np.asarray(sizes_of_document_index)
    stream = SequenceStream(np.arange(len(sizes), dtype=np.int64), sizes)
    return stream.sample_index(sequence_length, num_samples, int(add_extra_token))


def shuffle(array: NDArray[Any], rng: np.random.RandomState) -> None:
    """``rng.shuffle(array)`` for a (n,) array of integers, with the same result and the same state of ``rng`` after it.

    10 to 15 ns an entry with numba, 20 to 40 with NumPy alone, more the less of the array fits into the caches.
    """
    size = len(array)
    if size < (LONG if is_loaded() else LONG_ENOUGH_TO_IMPORT) or size > 1 << 32:
        rng.shuffle(array)
        return
    kernel = compiled(shuffle_kernel)
    if kernel is None:
        rng.shuffle(array)
        return
    # One type, so that one kernel is compiled: the elements are only moved.
    shuffle_with(kernel, array.view(np.int32) if array.itemsize == 4 else array, rng)


def shuffle_with(kernel: Any, array: NDArray[Any], rng: np.random.RandomState) -> None:
    """The shuffle through `shuffle_kernel`, compiled or not; at most 2^32 entries."""
    last = len(array) - 1
    places = np.empty(_PLACES, dtype=np.int64)
    while last > 0:
        before = rng.get_state(legacy=False)
        # A word is kept with a chance of at least one half.
        words = rng.randint(0, 1 << 32, size=min(_WORDS, 2 * last + 64), dtype=np.uint32)
        last, used = kernel(array, last, words, places)
    if len(array) > 1:
        # The words that were not looked at are given back.
        rng.set_state(before)
        rng.randint(0, 1 << 32, size=used, dtype=np.uint32)


Integers = NDArray[np.integer[Any]] | Sequence[int]


def build_doc_idx(
    documents: Integers, num_epochs: int, np_rng: np.random.RandomState, separate_last_epoch: bool
) -> NDArray[np.int32]:
    """(num_epochs * documents,) int32: the documents of all epochs, shuffled together.

    With ``separate_last_epoch`` the last epoch is shuffled apart from those before it, after them: no document of it
    can come among theirs.

    Raises:
        ConfigError: ``num_epochs`` is below 1, or a document has a number of 2^31 or more.

    >>> import numpy as np
    >>> build_doc_idx([0, 1, 2], 2, np.random.RandomState(1), separate_last_epoch=True).tolist()
    [0, 2, 1, 1, 2, 0]
    """
    if num_epochs < 1:
        raise ConfigError(f"num_epochs is {num_epochs}; at least 1")
    return document_index(_integers(documents), num_epochs, np_rng, separate_last_epoch)


def build_sample_idx(
    sizes: Integers,
    doc_idx: Integers,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: bool = True,
    *,
    float32_ceil: bool = False,
) -> NDArray[np.int32 | np.int64]:
    """(samples + 1, 2): the place in ``doc_idx`` where each sample begins, and the offset in that document.

    Args:
        sizes: tokens of each document.
        doc_idx: the documents of all epochs, in order.
        seq_length: tokens of a sample, without the extra one.
        num_epochs: how many times ``tokens_per_epoch`` the documents of ``doc_idx`` have.
        tokens_per_epoch: tokens of one epoch.
        drop_last_partial_sequence: whether a last sample too short is left out.
        add_extra_token_to_sequence: whether samples have ``seq_length + 1`` tokens, and share one with the next.
        float32_ceil: round the number of samples up in float32, as Megatron's compiled helper does when it keeps the
            partial sample. The number is then wrong for many tokens.

    int32 as long as the length of ``doc_idx`` fits in, else int64. One pass, no random numbers.

    Raises:
        ConfigError: a length or number is out of range, or ``doc_idx`` has fewer tokens than all epochs should.

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
            f"seq_length, num_epochs and tokens_per_epoch are at least 1, found {seq_length}, {num_epochs} and"
            f" {tokens_per_epoch}"
        )
    lengths, entries = checked_sizes(_integers(sizes)), _integers(doc_idx)
    if len(entries) and not 0 <= int(entries.min()) <= int(entries.max()) < len(lengths):
        raise ConfigError(
            f"doc_idx names documents {entries.min()} to {entries.max()}, and there are {len(lengths):,} sizes"
        )
    stream = SequenceStream(entries, lengths)
    if stream.num_tokens < num_epochs * tokens_per_epoch:
        raise ConfigError(
            f"the documents of doc_idx have {stream.num_tokens:,} tokens, and {num_epochs} epochs of"
            f" {tokens_per_epoch:,} are {num_epochs * tokens_per_epoch:,}: doc_idx holds the documents of all epochs"
        )
    extra = int(add_extra_token_to_sequence)
    num_samples = samples_in(
        num_epochs * tokens_per_epoch - extra, seq_length, drop_last_partial_sequence, float32_ceil
    )
    return stream.sample_index(seq_length, num_samples, extra)


def build_shuffle_idx(num_samples: int, total_size: int, np_rng: np.random.RandomState) -> Shuffled:
    """(total_size,) uint32: the first ``num_samples`` numbers shuffled, then those after them; int64 from 2^32 - 2 on.

    With the samples of all epochs but the last as ``num_samples``, those of the last epoch come last, and a run that
    stops early leaves out some of them only.

    >>> import numpy as np
    >>> build_shuffle_idx(8, 12, np.random.RandomState(0)).tolist()
    [6, 2, 1, 7, 3, 0, 5, 4, 11, 8, 10, 9]
    """
    if not 0 <= num_samples <= total_size:
        raise ConfigError(f"num_samples is {num_samples}; allowed is 0 to total_size, {total_size}")
    return shuffle_index(num_samples, total_size, np_rng)


def _integers(values: Integers) -> NDArray[np.integer[Any]]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ConfigError(f"sizes and documents are integers, found {array.dtype}")
    return array if array.size else np.zeros(0, dtype=np.int64)
