"""The three indices of Megatron's ``GPTDataset`` as arrays.

One ``numpy.random.RandomState`` shuffles them, in this order; NumPy promises that its stream never changes:

    rng = numpy.random.RandomState(seed)
    document_index(...)     E copies of the documents, shuffled together; a separate last epoch is shuffled apart
    sample_index(...)       no random numbers
    shuffle_index(...)      the samples, shuffled together; those of a separate last epoch are shuffled apart

``build_doc_idx``, ``build_sample_idx`` and ``build_shuffle_idx`` are the same under their names in Megatron-LM, for
lists and for arrays.
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
"""From this many entries on, the compiled shuffle is worth the import of numba, a third of a second."""

Shuffled = NDArray[np.uint32 | np.int64]


def document_index(
    documents: NDArray[np.integer[Any]] | range,
    num_epochs: int,
    rng: np.random.RandomState,
    separate_last_epoch: bool,
) -> NDArray[np.int32]:
    """Return (num_epochs * num_documents,) int32: ``documents`` repeated and shuffled, in place, with 4 bytes an entry.

    Raises:
        ConfigError: the number of a document is 2^31 or more, which Megatron's int32 cannot hold.
    """
    size = len(documents)
    if size and int(max(documents[-1], documents[0]) if isinstance(documents, range) else documents.max()) >= 1 << 31:
        raise ConfigError(
            "Megatron's document index is int32, so the numbers of sequences must be below 2^31: divide the data into"
            " several datasets"
        )
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
    """Return (num_samples,) uint32: the first ``num_first`` numbers shuffled, then the others shuffled.

    From 2^32 - 2 samples on, the dtype is int64.
    """
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
    """Return (num_samples + 1, 2): the entry of the document index where each sample begins, and the offset within it.

    ``sizes_of_document_index`` is (num_entries,): the tokens of each entry. The last row is where the last sample ends.
    The dtype is int32 if the number of entries fits into it, else int64. Takes one pass, in closed form.
    """
    sizes = np.asarray(sizes_of_document_index)
    stream = SequenceStream(np.arange(len(sizes), dtype=np.int64), sizes)
    return stream.sample_index(sequence_length, num_samples, int(add_extra_token))


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


Integers = NDArray[np.integer[Any]] | Sequence[int]


def build_doc_idx(
    documents: Integers, num_epochs: int, np_rng: np.random.RandomState, separate_last_epoch: bool
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
    return shuffle_index(num_samples, total_size, np_rng)


def _integers(values: Integers) -> NDArray[np.integer[Any]]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ConfigError(f"sizes and documents must be integers, found {array.dtype}")
    return array if array.size else np.zeros(0, dtype=np.int64)
