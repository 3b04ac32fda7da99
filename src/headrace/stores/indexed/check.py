"""Reads a whole indexed shard and reports everything that is wrong with it, by itself and against its manifest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.checking import Faults, check_file, check_values
from headrace.stores.indexed.index import CHUNK, Index, token_ids
from headrace.stores.indexed.stream import ContiguousStream, Stream, examine
from headrace.stores.manifest import entry_beside
from headrace.stores.store import IntArray, Problem, TokenArray
from headrace.stores.written import OutputShard


def check_sums(prefix: str, vouched: OutputShard, index: Index | None, stream: Stream | None) -> Iterator[Problem]:
    """Compare sizes and hashes of both files with the manifest; a block that differs is named with its content."""
    data, idx = vouched.files
    yield from check_file(prefix + ".bin", data, holds=partial(_in_bin, index, stream))
    yield from check_file(prefix + ".idx", idx, holds=partial(_in_idx, index))


def _in_idx(index: Index | None, begin: int, end: int) -> str:
    """Describe what a range of the ``.idx`` holds."""
    return "" if index is None else f" ({index.arrays.describe(begin, end)})"


def _in_bin(index: Index | None, stream: Stream | None, begin: int, end: int) -> str:
    """Describe which documents have bytes in a range of the ``.bin``."""
    if index is None or stream is None:
        return ""
    itemsize = index.dtype.itemsize
    if type(stream) is ContiguousStream:
        first, last = begin // itemsize, min(end - 1, index.last_byte - 1) // itemsize
        numbers = index.documents_of(stream.sequences(np.array([first, last]))) if first <= last else np.zeros(0, int)
    else:
        count = len(index.sizes)
        pointers, sizes = index.pointers.read(0, count), index.sizes.read(0, count)
        inside = (sizes > 0) & (pointers < end) & (pointers + sizes * itemsize > begin)
        numbers = index.documents_of(np.flatnonzero(inside))
    return f" (in documents {numbers.min()} to {numbers.max()})" if len(numbers) else " (in no document)"


def check_indexed(
    prefix: str,
    using: Reader,
    *,
    opened: Callable[[Reader], Index],
    vouched: OutputShard | None,
    vocab_size: int | None,
) -> Iterator[Problem]:
    """Yield every fault of ``<prefix>.bin`` and ``<prefix>.idx``, and of the manifest beside them.

    The manifest is only loaded if ``vouched`` is None. The index is opened again with ``opened``, so the state of an
    open store does not matter. This takes one pass over the ``.idx``, and one pass over the ``.bin`` for each of these:
    checksums, if a manifest lists the shard; and ids, if ``vocab_size`` is set.
    """
    using = copy.copy(using)  # a copy has no files open
    try:
        yield from _check(prefix, using, opened, vouched, vocab_size)
    finally:
        using.close()


def _check(
    prefix: str,
    using: Reader,
    opened: Callable[[Reader], Index],
    vouched: OutputShard | None,
    vocab_size: int | None,
) -> Iterator[Problem]:
    vouched, problems = entry_beside(prefix, "indexed", vouched)
    yield from problems
    path = prefix + ".bin"
    index, stream = None, None
    try:
        bin_bytes = using.size(path)
        index = opened(using)
        faults = list(_check_index(index, bin_bytes))
        yield from faults
        stream = examine(index) if not faults else None
    except StoreError as error:
        yield Problem(path=prefix, place="", message=str(error))
    if vouched is not None:
        yield from check_sums(prefix, vouched, index, stream)
    if index is not None and stream is not None:
        yield from _check_coverage(path, index, stream, bin_bytes)
        if vouched is not None:
            yield from _check_counts(prefix, vouched, index, stream)
        if vocab_size is not None and (vouched is None or all(info.ids for info in vouched.keys.values())):
            yield from _check_ids(path, using, index, stream, vocab_size)


def _check_index(index: Index, bin_bytes: int) -> Iterator[Problem]:
    """Check every pointer, size and document index."""
    count, itemsize = len(index.sizes), index.dtype.itemsize
    faults = Faults(index.path, "document indices")
    for begin in range(0, index.num_documents, CHUNK):
        bounds = index.bounds.read(begin, min(begin + CHUNK, index.num_documents) + 1)
        wrong = (bounds[1:] < bounds[:-1]) | (bounds[1:] > count) | (bounds[1:] < 0)
        for at in faults.to_name(wrong):
            message = (
                f"goes from sequence {bounds[at]} to {bounds[at + 1]}; document indices may not decrease and must be"
                f" within 0 to {count}"
            )
            yield Problem(path=index.path, place=f"document {begin + at}", message=message)
    yield from faults.rest()
    faults = Faults(index.path, "sequences")
    for begin in range(0, count, CHUNK):
        sizes = index.sizes.read(begin, min(begin + CHUNK, count))
        pointers = index.pointers.read(begin, min(begin + CHUNK, count))
        wrong = (sizes < 0) | (pointers < 0) | (pointers > bin_bytes - sizes * itemsize)
        for at in faults.to_name(wrong):
            message = f"{sizes[at]} tokens from byte {pointers[at]} on do not lie in the .bin of {bin_bytes} bytes"
            yield Problem(path=index.path, place=_sequence(index, begin + at), message=message)
    yield from faults.rest()


def _check_coverage(path: str, index: Index, stream: Stream, bin_bytes: int) -> Iterator[Problem]:
    """Find bytes that belong to no document. O(sequences) memory if the stream is scattered."""
    if index.size > index.arrays.end:
        message = f"{index.size - index.arrays.end} unused bytes after the document indices"
        yield Problem(path=index.path, place=f"byte {index.arrays.end}", message=message)
    if type(stream) is ContiguousStream:
        gaps = [(index.last_byte, bin_bytes)]
    else:
        count = len(index.sizes)
        begins = index.pointers.read(0, count)
        ends = begins + index.sizes.read(0, count) * index.dtype.itemsize
        order = np.argsort(begins, kind="stable")
        covered = np.concatenate(([0], np.maximum.accumulate(ends[order])))
        nexts = np.concatenate((begins[order], [bin_bytes]))
        holes = np.flatnonzero(nexts > covered)
        gaps = list(zip(covered[holes].tolist(), nexts[holes].tolist(), strict=True))
    faults = Faults(path, "gaps")
    for at in faults.to_name(np.array([begin < end for begin, end in gaps])):
        begin, end = gaps[at]
        message = f"{end - begin} bytes outside of any document"
        yield Problem(path=path, place=f"bytes {begin} to {end}", message=message)
    yield from faults.rest()


def _check_counts(prefix: str, vouched: OutputShard, index: Index, stream: Stream) -> Iterator[Problem]:
    """Compare the shard with the numbers in its manifest's entry."""
    facts = {
        "documents": (vouched.documents, index.num_documents),
        "tokens": (vouched.tokens, stream.num_tokens),
        "dtype": ("/".join(key.dtype for key in vouched.keys.values()), index.dtype.name),
        "contiguous": (vouched.contiguous, vouched.contiguous and type(stream) is ContiguousStream),
    }
    if index.arrays.bounds is None:  # opened with each sequence as a document, so the numbers differ
        del facts["documents"]
    for name, (listed, found) in facts.items():
        if listed != found:
            yield Problem(path=prefix, place="", message=f"{name}: the manifest says {listed}, the shard has {found}")


def _check_ids(path: str, using: Reader, index: Index, stream: Stream, vocab_size: int) -> Iterator[Problem]:
    """Find ids outside the vocabulary, the first one in each document."""

    def read(begin: int, end: int) -> TokenArray:
        stored = using.read_ranges(path, *stream.ranges(np.array([begin]), end - begin)).view(index.dtype)
        return token_ids(stored, index.arrays.shift, path)

    def find(tokens: IntArray) -> IntArray:
        return index.documents_of(stream.sequences(tokens))

    try:
        yield from check_values(path, index.dtype, read, stream.num_tokens, find, vocab_size)
    except StoreError as error:
        yield Problem(path=path, place="", message=str(error))


def _sequence(index: Index, sequence: int) -> str:
    return f"document {index.documents_of(np.array([sequence]))[0]}, sequence {sequence}"
