"""Whether index arrays that were stored are an order of the sequences there are now.

The name of a cache says nothing of the data, so the arrays themselves are asked: every sequence of the part is there as
often as there are epochs, every sample begins where the sizes put it, and every sample comes once.

    about 30 ns an entry of the document index, a few a sample; 4.5 bytes a sequence and one a sample while it runs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.epochs import Epochs, count_epochs
from headrace.plan.megatron.sampling import GPTSampling
from headrace.plan.megatron.stream import Integers, SequenceStream, checked_sizes

_CHUNK = 1 << 20


class CachedIndices(NamedTuple):
    """The three arrays of a `GPTDataset`'s cache, as they were found."""

    document_index: NDArray[Any]
    sample_index: NDArray[Any]
    shuffle_index: NDArray[Any]


class IndexFault(NamedTuple):
    """Which array is wrong, where in it (``"row 17"``, or empty), and what is there and ought to be."""

    array: str
    place: str
    message: str


_FORMS: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("document_index", (), ("int32",)),
    ("sample_index", (2,), ("int32", "int64")),
    ("shuffle_index", (), ("uint32", "int64")),
)
"""Name, shape of a row, and dtypes of each array."""


def fitting_sampling(found: CachedIndices, sizes: Integers, sampling: GPTSampling) -> GPTSampling:
    """``sampling`` with the rounding of the number of samples, exact or Megatron's, that the cache was built with."""
    if sampling.drop_last_partial or found.shuffle_index.ndim != 1:
        return sampling
    rounded = msgspec.structs.replace(sampling, float32_ceil=True)
    tokens = int(sizes.sum(dtype=np.int64))
    exact, in_float32 = (count_epochs(tokens, each).num_samples for each in (sampling, rounded))
    return rounded if exact != len(found.shuffle_index) == in_float32 else sampling


def check_indices(
    found: CachedIndices, sizes: Integers, sampling: GPTSampling, *, first_sequence: int = 0
) -> Iterator[IndexFault]:
    """What is wrong with the arrays of a cache, the first fault of each; nothing if they are an order of these data.

    Args:
        found: the arrays.
        sizes: (sequences,) tokens of each sequence of the part.
        sampling: what the cache ought to be built for; of the dialect ``core``.
        first_sequence: the number of the first of them.
    """
    sizes = checked_sizes(sizes)
    wrong_forms = list(_forms(found))
    if wrong_forms:
        yield from wrong_forms
        return
    try:
        epochs = count_epochs(int(sizes.sum(dtype=np.int64)), sampling)
    except ConfigError as error:
        yield IndexFault("document_index", "", str(error))
        return
    num_samples = epochs.num_samples
    fault = _document_fault(found.document_index, len(sizes), epochs, first_sequence)
    if fault is not None:
        yield fault
    if len(found.sample_index) != num_samples + 1:
        rows = f"{len(found.sample_index):,} rows, {num_samples + 1:,} are due: one a sample, and the end"
        yield IndexFault("sample_index", "", rows)
    elif fault is None:
        entries = found.document_index - first_sequence if first_sequence else found.document_index
        yield from _sample_fault(found.sample_index, SequenceStream(entries, sizes), num_samples, sampling)
    if len(found.shuffle_index) != num_samples:
        yield IndexFault("shuffle_index", "", f"{len(found.shuffle_index):,} entries, {num_samples:,} are due")
    else:
        yield from _shuffle_fault(found.shuffle_index, epochs)


def built_otherwise(
    found: CachedIndices, sizes: Integers, sampling: GPTSampling, *, first_sequence: int = 0
) -> GPTSampling | None:
    """The options that no name hashes with which the arrays are an order of these data; None if there are none."""
    for extra in (True, False):
        for drop in (True, False):
            if (extra, drop) == (sampling.add_extra_token, sampling.drop_last_partial):
                continue
            other = msgspec.structs.replace(sampling, add_extra_token=extra, drop_last_partial=drop, float32_ceil=False)
            try:
                other = fitting_sampling(found, sizes, other)
            except ConfigError:
                continue
            if next(check_indices(found, sizes, other, first_sequence=first_sequence), None) is None:
                return other
    return None


def check_blend_indices(
    dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], *, size: int, lengths: Sequence[int]
) -> Iterator[IndexFault]:
    """What is wrong with the arrays of a blend of datasets of these lengths: the first fault.

    Every dataset is drawn from in its own order, from its first sample on, and never beyond its last.
    """
    for name, array, dtype in (
        ("dataset_index", dataset_index, "int16"),
        ("dataset_sample_index", dataset_sample_index, "int64"),
    ):
        if array.dtype != dtype or array.shape != (size,):
            yield IndexFault(name, "", f"{array.dtype} of shape {array.shape}, {dtype} of shape {(size,)} is due")
            return
    drawn = np.zeros(len(lengths), dtype=np.int64)
    for first in range(0, size, _CHUNK):
        chosen = dataset_index[first : first + _CHUNK].astype(np.int64)
        bad = np.flatnonzero((chosen < 0) | (chosen >= len(lengths)))
        if len(bad):
            message = f"dataset {chosen[bad[0]]}, of {len(lengths):,} datasets"
            yield IndexFault("dataset_index", f"entry {first + int(bad[0]):,}", message)
            return
        ranks = _ranks(chosen, drawn)
        bad = np.flatnonzero(ranks != dataset_sample_index[first : first + _CHUNK])
        if len(bad):
            at = first + int(bad[0])
            there = f"sample {dataset_sample_index[at]:,} of dataset {chosen[bad[0]]}"
            yield IndexFault("dataset_sample_index", f"entry {at:,}", f"{there}, {ranks[bad[0]]:,} is due")
            return
        drawn += np.bincount(chosen, minlength=len(lengths))
    for number, (draws, length) in enumerate(zip(drawn.tolist(), lengths, strict=True)):
        if draws > length:
            yield IndexFault("dataset_index", "", f"{draws:,} samples of dataset {number}, which has {length:,}")
            return


def _forms(found: CachedIndices) -> Iterator[IndexFault]:
    for (name, row, dtypes), array in zip(_FORMS, found, strict=True):
        if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype not in dtypes:
            due = " or ".join(dtypes) + (f" of {row[0]} columns" if row else " of one dimension")
            yield IndexFault(name, "", f"{array.dtype} of shape {array.shape}, {due} is due")


def _document_fault(index: NDArray[Any], count: int, epochs: Epochs, first: int) -> IndexFault | None:
    """Whether each of ``count`` sequences from ``first`` on comes once an epoch, also in a last one that is apart."""
    name, wanted, size = "document_index", epochs.num_epochs, len(index)
    if size != wanted * count:
        due = f"{wanted:,} {'epoch' if wanted == 1 else 'epochs'} of {count:,} sequences are due"
        return IndexFault(name, "", f"{size:,} entries, {due}")
    apart = [(0, size - count, wanted - 1), (size - count, size, 1)]
    for begin, end, times in apart if epochs.separate_last_epoch else [(0, size, wanted)]:
        counts = np.zeros(count, dtype=np.int32)
        for at in range(begin, end, _CHUNK):
            chunk = index[at : min(at + _CHUNK, end)].astype(np.int64) - first
            outside = np.flatnonzero((chunk < 0) | (chunk >= count))
            if len(outside):
                message = (
                    f"sequence {int(chunk[outside[0]]) + first:,}, the part has {first:,} to {first + count - 1:,}"
                )
                return IndexFault(name, f"entry {at + int(outside[0]):,}", message)
            np.add.at(counts, chunk, np.int32(1))
        wrong = np.flatnonzero(counts != times)
        if len(wrong):
            there = f"sequence {first + int(wrong[0]):,} comes {int(counts[wrong[0]]):,} times, {times:,} are due"
            return IndexFault(name, f"entries {begin:,} to {end - 1:,}", there)
    return None


def _sample_fault(
    index: NDArray[Any], stream: SequenceStream, num_samples: int, sampling: GPTSampling
) -> Iterator[IndexFault]:
    """The first row that is not where the sizes put it."""
    extra = int(sampling.add_extra_token)
    for begin, entries, offsets in stream.sample_rows(sampling.sequence_length, num_samples, extra):
        rows = index[begin : begin + len(entries)]
        wrong = np.flatnonzero((rows[:, 0] != entries) | (rows[:, 1] != offsets))
        if len(wrong):
            row = int(wrong[0])
            there = f"entry {rows[row, 0]:,} at token {rows[row, 1]:,}"
            due = f"entry {entries[row]:,} at token {offsets[row]:,} is due"
            yield IndexFault("sample_index", f"row {begin + row:,}", f"{there}, {due}")
            return


def _shuffle_fault(index: NDArray[Any], epochs: Epochs) -> Iterator[IndexFault]:
    """Whether it is a permutation, and those samples first that begin before a last epoch that is apart."""
    size = epochs.num_samples
    seen = np.zeros(size, dtype=np.bool_)
    before = epochs.num_before_last if epochs.separate_last_epoch else size
    for begin, end in ((0, before), (before, size)):
        for at in range(begin, end, _CHUNK):
            chunk = index[at : min(at + _CHUNK, end)].astype(np.int64)
            outside = np.flatnonzero((chunk < begin) | (chunk >= end))
            if len(outside):
                message = f"sample {int(chunk[outside[0]]):,}, those from {begin:,} to {end - 1:,} are due here"
                yield IndexFault("shuffle_index", f"entry {at + int(outside[0]):,}", message)
                return
            seen[chunk] = True
    missing = np.flatnonzero(~seen)
    if len(missing):
        yield IndexFault("shuffle_index", "", f"sample {int(missing[0]):,} is missing, and another comes twice")


def _ranks(chosen: IntArray, drawn: IntArray) -> IntArray:
    """(n,) int64: how often each of ``chosen`` came before, ``drawn`` times before all of them."""
    order = np.argsort(chosen, kind="stable")
    in_order = chosen[order]
    ranks = np.empty_like(chosen)
    ranks[order] = np.arange(len(chosen)) - np.searchsorted(in_order, in_order) + drawn[in_order]
    return ranks
