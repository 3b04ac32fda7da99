"""Compares an indexed shard with the sums that its manifest lists, and says what lies where they differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.errors import StoreError
from headrace.io import FileSum, file_sum
from headrace.stores.indexed_index import Index
from headrace.stores.indexed_stream import ContiguousStream, Stream
from headrace.stores.manifest import OutputShard
from headrace.stores.store import Problem


def check_sums(prefix: str, vouched: OutputShard, index: Index | None, stream: Stream | None) -> Iterator[Problem]:
    """Sizes and hashes of both files against the manifest; a block that differs is named with what lies in it."""
    for suffix, listed in zip((".bin", ".idx"), vouched.files, strict=True):
        path = prefix + suffix
        try:
            found = file_sum(path, block_bytes=listed.block_bytes)
        except StoreError as error:
            yield Problem(path=path, place="", message=str(error))
            continue
        if found.size != listed.size:
            message = f"the manifest says {listed.size} bytes, the file has {found.size}"
            yield Problem(path=path, place="", message=message)
        elif found.xxh3_128 != listed.xxh3_128:
            yield from _changed_blocks(path, found, listed, index, stream)


def _changed_blocks(
    path: str, found: FileSum, listed: FileSum, index: Index | None, stream: Stream | None
) -> Iterator[Problem]:
    blocks = list(zip(found.xxh3_64, listed.xxh3_64, strict=True))
    changed = [block for block, (has, says) in enumerate(blocks) if has != says]
    for block in changed:
        begin = block * found.block_bytes
        end = min(begin + found.block_bytes, found.size)
        holds = _in_bin(index, stream, begin, end) if path.endswith(".bin") else _in_idx(index, begin, end)
        has, says = blocks[block]
        message = f"the bytes were changed: xxh3_64 is {has}, the manifest says {says}{holds}"
        yield Problem(path=path, place=f"bytes {begin} to {end}", message=message)
    if not changed:
        message = f"xxh3_128 is {found.xxh3_128}, the manifest says {listed.xxh3_128}, yet each block agrees"
        yield Problem(path=path, place="", message=message)


def _in_idx(index: Index | None, begin: int, end: int) -> str:
    """What a range of the ``.idx`` holds, in words."""
    return "" if index is None else f" ({index.layout.describe(begin, end)})"


def _in_bin(index: Index | None, stream: Stream | None, begin: int, end: int) -> str:
    """Which documents have bytes in a range of the ``.bin``, in words."""
    if index is None or stream is None:
        return ""
    itemsize = index.layout.dtype.itemsize
    if type(stream) is ContiguousStream:
        first, last = begin // itemsize, min(end - 1, index.last_byte - 1) // itemsize
        numbers = index.documents_of(stream.sequences(np.array([first, last]))) if first <= last else np.zeros(0, int)
    else:
        count = len(index.sizes)
        pointers, sizes = index.pointers.read(0, count), index.sizes.read(0, count)
        inside = (sizes > 0) & (pointers < end) & (pointers + sizes * itemsize > begin)
        numbers = index.documents_of(np.flatnonzero(inside))
    return f" (in documents {numbers.min()} to {numbers.max()})" if len(numbers) else " (in no document)"
