"""The three indices as arrays, and the one ``numpy.random.RandomState`` that shuffles them, in this order of use.

    rng = numpy.random.RandomState(seed)
    document_index(...)     E copies of the documents, shuffled together; the last one apart if it is separate
    sample_index(...)       no random numbers
    shuffle_index(...)      the samples, shuffled together; those of a separate last epoch apart

NumPy promises that the stream of RandomState never changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.megatron.kernels import LONG, compiled, is_loaded, shuffle_kernel
from headrace.plan.megatron.stream import SequenceStream

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
