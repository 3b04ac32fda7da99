"""Exact duplicates, found by the 128-bit hashes of texts, which are shared out by their values.

The task that encodes a part writes its hashes beside it, sorted; a task for each range of hashes finds which documents
are duplicates of earlier ones (`find_duplicates`); and the cut of the shards reads what was found (`FoundDuplicates`).
Two texts count as equal if their hashes are equal: among 10^9 different texts the chance of one wrong pair is about
10^-21, unless somebody constructs it.

All of these files are written whole, by one task, and each reader needs two short reads of one, whatever its size:

    uint64 x (ranges + 1)   where each range begins, and where the last one ends
    ranges                  xxh3_64 of the rest, then the columns of the range, (n,) uint64 each
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.job import TaskResult
from headrace.errors import OutputError
from headrace.io import Reader, output_errors, write_all
from headrace.io.finding import each
from headrace.preparing.columns import Column, IntArray, Rows
from headrace.preparing.run_plan import FindTask

DAMAGED: Final = "a file of this run is damaged; the machine may have lost power. Run again with --restart"

HashArray = NDArray[np.uint64]
"""(n, 2) uint64: the high and low half of each 128-bit hash."""


def hash_texts(columns: Sequence[Sequence[str]]) -> HashArray:
    """The hash of each record: xxh3_128 of its text in UTF-8, or, for several fields, of the 16-byte hashes in a row.

    Since the fields are hashed separately, ``("ab", "c")`` and ``("a", "bc")`` differ.

    Args:
        columns: for each field the texts of the n records.

    Returns:
        (n, 2) uint64, high and low half.
    """
    digests = [[xxhash.xxh3_128_digest(text.encode()) for text in texts] for texts in columns]
    if len(digests) > 1:
        digests = [[xxhash.xxh3_128_digest(b"".join(row)) for row in zip(*digests, strict=True)]]
    data = b"".join(digests[0]) if digests else b""
    return np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)


def hash_documents(columns: Sequence[Column], rows: Rows) -> HashArray:
    """(n, 2) the hash of each document: xxh3_128 of the hashes of its values in each key of the store."""
    whole = []
    for column, (tokens, lengths) in zip(columns, rows, strict=True):
        if column.kind == "domain":
            continue
        view = np.ascontiguousarray(tokens).view(np.uint8).data
        ends = (np.cumsum(lengths) * tokens.itemsize).tolist()
        begins = [0, *ends[:-1]]
        whole.append([xxhash.xxh3_128_digest(view[begin:end]) for begin, end in zip(begins, ends, strict=True)])
    digests = [xxhash.xxh3_128_digest(b"".join(parts)) for parts in zip(*whole, strict=True)]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def first_of_each(hashes: HashArray) -> IntArray:
    """The index of the first occurrence of each different hash, in the order of the hashes."""
    high, low = hashes[:, 0], hashes[:, 1]
    order = np.argsort(high, kind="stable")
    sorted_high, sorted_low = high[order], low[order]
    same_high = sorted_high[1:] == sorted_high[:-1]
    if not same_high.any():
        return order
    same = same_high & (sorted_low[1:] == sorted_low[:-1])
    if not np.array_equal(same, same_high):
        order = np.lexsort((low, high))
        same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    return order[np.concatenate(([True], ~same))]


BLOCK_PARTS = 256
"""Parts whose duplicates are loaded at a time."""

Columns = NDArray[np.uint64]
"""(columns, n) uint64: what a range holds of n documents."""


def ranges_of(keys: NDArray[np.uint64], num_ranges: int) -> IntArray:
    """(n,) the range of each key if a power of two of ranges share all keys by their high bits."""
    if num_ranges == 1:
        return np.zeros(len(keys), np.int64)
    return (keys >> np.uint64(64 - (num_ranges.bit_length() - 1))).astype(np.int64)


def write_ranges(path: Path, num_ranges: int, ranges: IntArray, columns: Columns) -> None:
    """Write a file of ranges. It is not synced.

    Args:
        path: the file.
        num_ranges: how many ranges it has.
        ranges: (n,) ascending, the range of each document.
        columns: (columns, n) what is written of the documents.

    Raises:
        OutputError: the system refuses a write.
    """
    edges = np.searchsorted(ranges, np.arange(num_ranges + 1)).tolist()
    bodies = [columns[:, first:last].tobytes() for first, last in itertools.pairwise(edges)]
    bodies = [xxhash.xxh3_64_intdigest(body).to_bytes(8, sys.byteorder) + body for body in bodies]
    begins = np.cumsum([8 * (num_ranges + 1), *map(len, bodies)], dtype=np.uint64)
    with output_errors(path, "write"), path.open("wb", buffering=0) as file:
        write_all(file.write, b"".join([begins.tobytes(), *bodies]))


def read_range(using: Reader, place: str, number: int, num_columns: int) -> Columns:
    """Read one range of a file, or of the object at a URL: (``num_columns``, n), as they were written.

    Raises:
        OutputError: the file is not as it was written.
        StoreError: it cannot be read.
    """
    size = using.size(place)
    begin, end = using.read(place, 8 * number, 16).view(np.uint64).tolist() if size >= 8 * number + 16 else (0, 0)
    data = using.read(place, begin, end - begin) if 0 < begin <= end <= size else np.zeros(0, np.uint8)
    if data.size < 8 or xxhash.xxh3_64_intdigest(data[8:].data) != int(data[:8].view(np.uint64)[0]):
        raise OutputError(f"{place}: {DAMAGED}")
    return data[8:].view(np.uint64).reshape(num_columns, -1)


def write_hashes(path: Path, num_ranges: int, hashes: HashArray) -> None:
    """Write the different hashes of a part as a file of ranges: high halves, documents, low halves.

    Raises:
        OutputError: the system refuses a write.
    """
    first = first_of_each(hashes)
    high, low = hashes[first].T
    write_ranges(path, num_ranges, ranges_of(high, num_ranges), np.stack((high, first.astype(np.uint64), low)))


def find_duplicates(folder: str, hashes: Sequence[str], using: Reader, order: FindTask) -> TaskResult:
    """Find the duplicates among the hashes of a range. Memory: about 120 bytes for each hash.

    The result is a file of ranges, too: range k tells of the parts from 256 k on. It holds the numbers of parts, and
    the documents in these that have the same text as a document of an earlier part.

    Args:
        folder: where to put the results.
        hashes: the files, or the URLs, of the hashes of all parts, in their order.
        using: what reads them.
        order: the range.

    Raises:
        OutputError: a file of hashes is damaged, or the result cannot be written.
        StoreError: a file of hashes cannot be read.
    """
    found = list(each(lambda place: read_range(using, place, order.task_index, 3), hashes, hashes))
    high, documents, low = np.concatenate([np.zeros((3, 0), np.uint64), *found], axis=1)
    parts = np.repeat(np.arange(len(found)), [columns.shape[1] for columns in found])
    is_later = np.ones(len(high), np.bool_)
    is_later[first_of_each(np.stack((high, low), axis=1))] = False
    where = parts[is_later]
    path = duplicates_path(folder, order.task_index)
    write_ranges(
        path,
        -(-len(hashes) // BLOCK_PARTS),
        where // BLOCK_PARTS,
        np.stack((where.astype(np.uint64), documents[is_later])),
    )
    num_bytes = sum(columns.nbytes for columns in found)
    return TaskResult(files=(path.name,), counts={"bytes": num_bytes, "documents": len(high)})


def duplicates_path(folder: str | Path, number: int) -> Path:
    """The path of what was found in a range of hashes."""
    return Path(folder) / f"{number}.duplicates"


class FoundDuplicates:
    """The duplicates that `find_duplicates` found in all ranges. Memory: 16 bytes for each one of 256 parts.

    Args:
        ranges: the files, or the URLs, of what was found in each range; there is at least one.
        using: what reads them.
    """

    def __init__(self, ranges: Sequence[str], using: Reader) -> None:
        self._ranges = ranges
        self._using = using
        self._block = -1
        self._parts = self._documents = np.zeros(0, np.int64)

    def is_new(self, number: int, hashes: HashArray) -> NDArray[np.bool_]:
        """(n,) whether each document of a part is seen for the first time.

        Args:
            number: the number of its hashes in the order that the finders had.
            hashes: (n, 2) the hashes of its documents; n is at least 1.
        """
        if number // BLOCK_PARTS != self._block:
            self._load(number // BLOCK_PARTS)
        found = np.zeros(len(hashes), np.bool_)
        found[first_of_each(hashes)] = True
        first, last = np.searchsorted(self._parts, [number, number + 1])
        found[self._documents[first:last]] = False
        return found

    def _load(self, block: int) -> None:
        found = each(lambda place: read_range(self._using, place, block, 2), self._ranges, self._ranges)
        parts, documents = np.concatenate(list(found), axis=1).astype(np.int64)
        order = np.argsort(parts, kind="stable")
        self._parts, self._documents, self._block = parts[order], documents[order], block
