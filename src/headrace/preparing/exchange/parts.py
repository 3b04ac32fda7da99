"""Documents as frames of bytes, and files of frames of which each reader reads one part.

A frame holds documents that go to the same place:

    uint64 x (3 + columns)   bytes of the frame, documents, values of each column, and last xxh3_64 of the rest
    (n,) uint64              key of each document, by which they are sorted
    (n,) int64               number of each document
    for each column: (n,) uint32 lengths, padded to 8 bytes; then its values, padded to 8 bytes

A file of parts is written whole, by one task. A reader of part k needs two short reads, whatever the size of the file:

    uint64 x (parts + 1)     where each part begins, and where the last one ends
    frames                   at most one for each part, in their order
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import OutputError, StoreError
from headrace.io import Reader, output_errors, write_all
from headrace.preparing.columns import IntArray, Row, Rows

T = TypeVar("T")
R = TypeVar("R")
READS_AT_ONCE: Final = 32
DAMAGED: Final = "the machine may have lost power. Run again with --restart"


class NumberedDocuments(NamedTuple):
    """Documents that go to the same place."""

    keys: NDArray[np.uint64]
    """(n,) ascending within a frame that was read, in any order after `joined`."""

    numbers: IntArray
    """(n,) which document each one is: of its piece, or of the run."""

    rows: Rows


def parts_of(keys: NDArray[np.uint64], num_parts: int) -> IntArray:
    """(n,) the part of each key if a power of two of parts share all keys by their high bits."""
    if num_parts == 1:
        return np.zeros(len(keys), np.int64)
    return (keys >> np.uint64(64 - (num_parts.bit_length() - 1))).astype(np.int64)


def encode_frames(parts: IntArray, documents: NumberedDocuments) -> Iterator[tuple[int, bytes]]:
    """Yield each part that has documents, and its frame. ``parts`` (n,) is ascending."""
    if not len(parts):
        return
    keys, numbers, rows = documents
    edges = np.flatnonzero(np.diff(parts, prepend=-1, append=parts[-1] + 1))
    ends = [np.concatenate(([0], np.cumsum(lengths))) for _, lengths in rows]
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        found = [keys[first:last].tobytes(), numbers[first:last].tobytes()]
        counts = []
        for (values, lengths), end in zip(rows, ends, strict=True):
            counts.append(int(end[last] - end[first]))
            found.append(_padded(lengths[first:last].astype(np.uint32).tobytes()))
            found.append(_padded(values[end[first] : end[last]].tobytes()))
        body = b"".join(found)
        head = np.array([len(body) + 8 * (3 + len(rows)), last - first, *counts], np.uint64).tobytes()
        yield int(parts[first]), head + _digest(head, body) + body


def decode_frames(
    data: NDArray[np.uint8], dtypes: Sequence[np.dtype[Any]], path: Path | str, what: str = "a part"
) -> Iterator[NumberedDocuments]:
    """Yield the frames in ``data``, as views of it.

    Args:
        data: (bytes,) uint8.
        dtypes: the dtype of each column.
        path: the file or the URL that they come from, for messages.
        what: what the file is, for messages.

    Raises:
        OutputError: a frame is not as it was written.
    """
    offset, head_bytes = 0, 8 * (3 + len(dtypes))
    while offset < data.size:
        head = data[offset : offset + head_bytes]
        size, count, *num_values, _ = head.view(np.uint64).tolist() if head.size == head_bytes else [0, 0, 0]
        body = data[offset + head_bytes : offset + size]
        if size < head_bytes or _digest(head[:-8].data, body.data) != head[-8:].tobytes():
            raise OutputError(f"{path}: {what} is damaged at byte {offset:,}; {DAMAGED}")
        offset += size
        at = 16 * count
        rows: list[Row] = []
        for dtype, number in zip(dtypes, num_values, strict=True):
            lengths = body[at : at + 4 * count].view(np.uint32).astype(np.int64)
            at += _rounded(4 * count)
            rows.append((body[at : at + number * dtype.itemsize].view(dtype), lengths))
            at += _rounded(number * dtype.itemsize)
        yield NumberedDocuments(body[: 8 * count].view(np.uint64), body[8 * count : 16 * count].view(np.int64), rows)


def joined(frames: Sequence[NumberedDocuments], dtypes: Sequence[np.dtype[Any]]) -> NumberedDocuments:
    """Return the documents of all frames in a row."""
    rows: list[Row] = []
    for column, dtype in enumerate(dtypes):
        values = [np.zeros(0, dtype), *(frame.rows[column][0] for frame in frames)]
        lengths = [np.zeros(0, np.int64), *(frame.rows[column][1] for frame in frames)]
        rows.append((np.concatenate(values), np.concatenate(lengths)))
    keys = np.concatenate([np.zeros(0, np.uint64), *(frame.keys for frame in frames)])
    return NumberedDocuments(keys, np.concatenate([np.zeros(0, np.int64), *(frame.numbers for frame in frames)]), rows)


def write_parts(path: Path, num_parts: int, parts: IntArray, documents: NumberedDocuments) -> None:
    """Write a file of parts, which appears whole or not at all. It is not synced.

    Args:
        path: the file.
        num_parts: how many parts it has.
        parts: (n,) ascending, the part of each document.
        documents: the n documents.

    Raises:
        OutputError: the system refuses a write.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    sizes = np.zeros(num_parts + 1, np.uint64)
    sizes[0] = sizes.nbytes
    try:
        with temporary.open("wb", buffering=0) as file:
            file.seek(sizes.nbytes)
            for part, frame in encode_frames(parts, documents):
                write_all(file.write, frame)
                sizes[part + 1] = len(frame)
            file.seek(0)
            write_all(file.write, np.cumsum(sizes, dtype=np.uint64).tobytes())
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot write: {error.strerror or error}") from error


def read_part(path: Path | str, part: int) -> NDArray[np.uint8]:
    """Read one part of a file, or of the object at a URL, as `decode_frames` takes it. Empty if it has no documents.

    Raises:
        OutputError: the file cannot be read, or is shorter than it was.
        StoreError: the object cannot be read.
    """
    if isinstance(path, str):
        first, end = read_bytes(path, 8 * part, 16).view(np.uint64).tolist()
        return read_bytes(path, first, end - first)
    with output_errors(path, "read"), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(8 * part)
        bounds = np.fromfile(file, np.uint64, 2).tolist()
        if len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= size:
            file.seek(bounds[0])
            return np.fromfile(file, np.uint8, bounds[1] - bounds[0])
    raise OutputError(f"{path}: a part is damaged: it was cut short; {DAMAGED}")


def read_bytes(url: str, offset: int, length: int) -> NDArray[np.uint8]:
    """Read a range of an object; raises StoreError."""
    try:
        return _objects().read_ranges(url, np.array([offset]), np.array([length]))
    except FileNotFoundError:
        raise StoreError(f"{url}: is not there any more") from None


@functools.cache
def _objects() -> Reader:
    """Return what reads objects in this process, as its environment says; it is loaded when the first URL comes."""
    made: Reader = resolve_name("headrace.io.objects:ObjectReader")()
    return made


def at(base: Path | str, name: str) -> Path | str:
    """Return the place of a file in a folder, or below a URL."""
    return base / name if isinstance(base, Path) else f"{base}/{name}"


def for_each(base: Path | str, read: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield what is read for each item, in their order; of objects, many are read at the same time."""
    if isinstance(base, Path):
        yield from map(read, items)
        return
    with ThreadPoolExecutor(READS_AT_ONCE) as threads:
        yield from threads.map(read, items)


def _digest(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    hasher = xxhash.xxh3_64(head)
    hasher.update(body)
    return hasher.intdigest().to_bytes(8, sys.byteorder)


def _rounded(size: int) -> int:
    return size + -size % 8


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
