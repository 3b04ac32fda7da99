"""Compares an indexed shard with the sums that its manifest lists, and says what lies where they differ."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from headrace.stores.indexed_index import Index
from headrace.stores.indexed_stream import ContiguousStream, Stream
from headrace.stores.manifest_output import OutputShard
from headrace.stores.store import Problem
from headrace.stores.sums import check_file


def check_sums(prefix: str, vouched: OutputShard, index: Index | None, stream: Stream | None) -> Iterator[Problem]:
    """Sizes and hashes of both files against the manifest; a block that differs is named with what lies in it."""
    data, idx = vouched.files
    yield from check_file(prefix + ".bin", data, holds=partial(_in_bin, index, stream))
    yield from check_file(prefix + ".idx", idx, holds=partial(_in_idx, index))


def _in_idx(index: Index | None, begin: int, end: int) -> str:
    """What a range of the ``.idx`` holds, in words."""
    return "" if index is None else f" ({index.arrays.describe(begin, end)})"


def _in_bin(index: Index | None, stream: Stream | None, begin: int, end: int) -> str:
    """Which documents have bytes in a range of the ``.bin``, in words."""
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
