"""Exact duplicates: hashes of texts, and the set of those that were seen.

Duplicates are found by the 128-bit hashes of their texts (`SeenHashes`). The hashes are kept in sorted runs, each
at least `_RATIO` times as long as the next. A new batch becomes the last run, and the last run is merged into the one
before it, in place, for as long as the ratio is too small. The lengths of the runs for batches of 10 new hashes and
ratio 8:

    10  20  30 ... 80  80+10  100 ... 160  160+10  160+20  190 ... 640  640+10 ... 640+80  640+80+10  740

A look-up is a short bisection in each run, and there are at most log8(n / batch) + 2 runs. Two texts count as equal if
their hashes are equal: among 10^9 different texts the chance of one wrong pair is about 10^-21, unless somebody
constructs it.

In a planned run the hashes are shared out instead: the task that encodes a piece writes them beside it, sorted; a task
for each range of hashes finds which documents are duplicates of earlier ones (`DuplicateFinder`); and the process that
commits the pieces reads what was found (`FoundDuplicates`). All of these files are files of parts: each is written
whole, by one task, and each reader needs two short reads of it, whatever its size:

    uint64 x (parts + 1)    where each part begins, and where the last one ends
    parts                   xxh3_64 of the rest, then the columns of the part, (n,) uint64 each
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.serving import Done
from headrace.errors import InputError, OutputError, StoreError
from headrace.io import Reader, output_errors, path_at, write_all
from headrace.io.finding import each
from headrace.preparing.columns import Column, IntArray, Rows
from headrace.preparing.messages import FindTask

DAMAGED: Final = "the machine may have lost power. Run again with --restart"

HashArray = NDArray[np.uint64]
"""(n, 2) uint64: the high and low half of each 128-bit hash."""

HASH_BYTES = 16
_RATIO = 8
_CHUNK = 1 << 16
"""Hashes of a run that a merge moves at a time; the working memory of a merge is a few times as much."""

_PAIR = np.dtype("V16")
"""Both halves as one item, which NumPy moves several times as fast as rows of two."""

_LOAD = 1 << 20
"""Hashes read at a time."""


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


class SeenHashes:
    """A set of hashes that tells for each added hash whether it is new.

    Measured memory: 16.2 bytes for each hash; at the peak of a merge 23 with 10^6 hashes, and below 19 from 10^7 on.
    It adds one to two million hashes per CPU second in batches of some thousands; small batches cost more.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the hashes take."""
        return sum(run.num_bytes for run in self._runs)

    def add(self, hashes: HashArray) -> NDArray[np.bool_]:
        """Add hashes, and tell which are new.

        Args:
            hashes: (n, 2) uint64, as `hash_texts` returns them.

        Returns:
            (n,) bool, True where a hash is seen for the first time; among equal hashes of the batch, the first one.
        """
        is_first = np.zeros(len(hashes), np.bool_)
        if not len(hashes):
            return is_first
        order = first_of_each(hashes)
        batch = hashes[order]
        is_new = np.ones(len(batch), np.bool_)
        for run in self._runs:
            is_new &= ~run.contains(batch)
        is_first[order[is_new]] = True
        if is_new.any():
            self._runs.append(_Run(batch[is_new]))
            self._settle()
        return is_first

    @classmethod
    def load(cls, path: str | Path, num_hashes: int | None = None) -> SeenHashes:
        """Load hashes from a file that holds each as 16 bytes, two little-endian uint64.

        Args:
            path: the file; it may hold more hashes than are loaded.
            num_hashes: how many hashes to load, from the beginning of the file; None loads all.

        Raises:
            InputError: the file cannot be read.
            StoreError: the file is shorter, ends within a hash, or holds one twice.
        """
        seen = cls()
        try:
            with Path(path).open("rb") as file:
                if num_hashes is None:
                    num_hashes = -(-os.fstat(file.fileno()).st_size // HASH_BYTES)
                while len(seen) < num_hashes:
                    wanted = min(_LOAD, num_hashes - len(seen))
                    values = np.fromfile(file, "<u8", 2 * wanted)
                    if len(values) < 2 * wanted:
                        found = len(seen) + len(values) // 2
                        raise StoreError(
                            f"{path}: {num_hashes:,} hashes of {HASH_BYTES} bytes should be there, found {found:,}; "
                            "the file was cut short: start the run over with --restart"
                        )
                    if not seen.add(values.astype(np.uint64).reshape(-1, 2)).all():
                        raise StoreError(
                            f"{path}: a hash is there twice, but each is stored only once; the file was changed: "
                            "start the run over with --restart"
                        )
        except OSError as error:
            raise InputError(f"{path}: the hashes cannot be read: {error.strerror or error}") from error
        return seen

    def _settle(self) -> None:
        """Merge from the end until each run is at least `_RATIO` times as long as the next."""
        runs = self._runs
        while len(runs) > 1 and len(runs[-1]) * _RATIO > len(runs[-2]):
            small = runs.pop()
            runs[-1].merge(small.hashes)


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


class _Run:
    """Different hashes in ascending order, with a directory that tells for each value of their first bits where the
    hashes with these bits begin.

    The directory has an entry for every 32 to 64 hashes, so that a look-up touches two or three places in memory, not
    twenty.
    """

    def __init__(self, hashes: HashArray) -> None:
        self.hashes = np.ascontiguousarray(hashes, np.uint64)
        self._index()

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the hashes and the directory take."""
        return self.hashes.nbytes + self._begins.nbytes

    def contains(self, hashes: HashArray) -> NDArray[np.bool_]:
        """(n,) bool: whether each hash is in the run."""
        buckets = (hashes[:, 0] >> self._shift).astype(np.int64)
        at = _lower_bounds(self.hashes, hashes, self._begins[buckets], self._begins[buckets + 1])
        flat = self.hashes.reshape(-1)
        place = 2 * np.minimum(at, len(self) - 1)
        same: NDArray[np.bool_] = flat.take(place) == hashes[:, 0]
        if same.any():
            same &= flat.take(place + 1) == hashes[:, 1]
        return same

    def merge(self, added: HashArray) -> None:
        """Merge sorted hashes into this run, none of which may be in it already.

        The run grows in place (the system moves pages, not bytes) and is filled from the end, one chunk at a time, so
        that the peak of memory is the result and a few chunks.
        """
        end, rest = len(self), len(added)
        self.hashes.resize((end + rest, 2), refcheck=False)
        while rest:
            begin = max(end - _CHUNK, 0)
            chunk = self.hashes[begin:end].copy()
            # Hashes that belong before the chunk are left for the next chunk.
            first = int(_positions(added[:rest], chunk[:1])[0]) if begin else 0
            places = _positions(chunk, added[first:rest]) + np.arange(rest - first)
            is_old = np.ones(len(chunk) + rest - first, np.bool_)
            is_old[places] = False
            merged = self.hashes[begin + first : end + rest].view(_PAIR)[:, 0]
            merged[is_old] = chunk.view(_PAIR)[:, 0]
            merged[places] = added[first:rest].view(_PAIR)[:, 0]
            end, rest = begin, first
        self._index()

    def _index(self) -> None:
        bits = max(len(self).bit_length() - 6, 1)
        self._shift = np.uint64(64 - bits)
        firsts = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._begins = np.append(np.searchsorted(self.hashes[:, 0], firsts), len(self))


def _positions(run: HashArray, hashes: HashArray) -> IntArray:
    """(n,) the number of hashes in the sorted run that are smaller than each hash."""
    high = np.ascontiguousarray(run[:, 0])
    begins = np.searchsorted(high, hashes[:, 0])
    ends = np.searchsorted(high, hashes[:, 0], side="right")
    return _lower_bounds(run, hashes, begins, ends)


def _lower_bounds(run: HashArray, hashes: HashArray, begins: IntArray, ends: IntArray) -> IntArray:
    """(n,) each hash's first index in ``[begin, end)`` of the sorted run that is not smaller, or ``end``."""
    flat = run.reshape(-1)
    high, low = np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])
    # Bisection for all hashes at once: steps of 2^k, 2^(k-1), ..., 1, each taken if it stays among smaller hashes.
    step = 1 << int((ends - begins).max(initial=0)).bit_length()
    while step := step >> 1:
        tried = begins + step
        last = 2 * tried - 2
        found = flat.take(last, mode="clip")
        less = found < high
        same = found == high
        if same.any():
            less |= same & (flat.take(last + 1, mode="clip") < low)
        begins = np.where(less & (tried <= ends), tried, begins)
    return begins


BLOCK_PIECES = 256
"""Pieces whose duplicates are loaded at a time."""

Columns = NDArray[np.uint64]
"""(columns, n) uint64: what a part holds of n documents."""


def parts_of(keys: NDArray[np.uint64], num_parts: int) -> IntArray:
    """(n,) the part of each key if a power of two of parts share all keys by their high bits."""
    if num_parts == 1:
        return np.zeros(len(keys), np.int64)
    return (keys >> np.uint64(64 - (num_parts.bit_length() - 1))).astype(np.int64)


def write_parts(path: Path, num_parts: int, parts: IntArray, columns: Columns) -> None:
    """Write a file of parts, which appears whole or not at all. It is not synced.

    Args:
        path: the file.
        num_parts: how many parts it has.
        parts: (n,) ascending, the part of each document.
        columns: (columns, n) what is written of the documents.

    Raises:
        OutputError: the system refuses a write.
    """
    edges = np.searchsorted(parts, np.arange(num_parts + 1)).tolist()
    bodies = [columns[:, first:last].tobytes() for first, last in itertools.pairwise(edges)]
    bodies = [xxhash.xxh3_64_intdigest(body).to_bytes(8, sys.byteorder) + body for body in bodies]
    begins = np.cumsum([8 * (num_parts + 1), *map(len, bodies)], dtype=np.uint64)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=0) as file:
            write_all(file.write, b"".join([begins.tobytes(), *bodies]))
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot write: {error.strerror or error}") from error


def read_part(place: Path | str, part: int, num_columns: int) -> Columns:
    """Read one part of a file, or of the object at a URL: (``num_columns``, n), as they were written.

    Raises:
        OutputError: the file cannot be read, or is not as it was written.
        StoreError: the object cannot be read.
    """
    data = _part_at(place, part)
    if data.size < 8 or xxhash.xxh3_64_intdigest(data[8:].data) != int(data[:8].view(np.uint64)[0]):
        raise OutputError(f"{place}: a part is damaged; {DAMAGED}")
    return data[8:].view(np.uint64).reshape(num_columns, -1)


def _part_at(place: Path | str, part: int) -> NDArray[np.uint8]:
    path = path_at(place)
    if not isinstance(path, Path):
        begin, end = _bytes_at(str(path), 8 * part, 16).view(np.uint64).tolist()
        return _bytes_at(str(path), begin, end - begin)
    with output_errors(path, "read"), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(8 * part)
        bounds = np.fromfile(file, np.uint64, 2).tolist()
        if len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= size:
            file.seek(bounds[0])
            return np.fromfile(file, np.uint8, bounds[1] - bounds[0])
    raise OutputError(f"{place}: a part is damaged: it was cut short; {DAMAGED}")


def _bytes_at(url: str, offset: int, length: int) -> NDArray[np.uint8]:
    try:
        return _objects().read_ranges(url, np.array([offset]), np.array([length]))
    except FileNotFoundError:
        raise StoreError(f"{url}: is not there any more") from None


@functools.cache
def _objects() -> Reader:
    """Return what reads objects in this process, as its environment says; it is loaded when the first URL comes."""
    made: Reader = resolve_name("headrace.io.objects:ObjectReader")()
    return made


def write_hashes(path: Path, num_ranges: int, hashes: HashArray) -> None:
    """Write the different hashes of a piece as a file of parts, one for each range: high halves, documents, low halves.

    Raises:
        OutputError: the system refuses a write.
    """
    first = first_of_each(hashes)
    high, low = hashes[first].T
    write_parts(path, num_ranges, parts_of(high, num_ranges), np.stack((high, first.astype(np.uint64), low)))


class DuplicateFinder:
    """Finds the duplicates among the hashes of a range, in a worker. Memory: about 120 bytes for each hash.

    The result is a file of parts: part k tells of the pieces from 256 k on. It holds the numbers of pieces, and the
    documents in these that have the same text as a document of an earlier piece.

    Args:
        folder: where to put the results.
        hashes: the files, or the URLs, of the hashes of all pieces, in their order.
    """

    def __init__(self, folder: str, hashes: Sequence[Path | str]) -> None:
        self._folder = folder
        self._hashes = hashes

    def run(self, order: FindTask) -> Done:
        """Find the duplicates of a range.

        Raises:
            OutputError: a file of hashes is damaged or cannot be read, or the result cannot be written.
        """
        found = list(each(lambda place: read_part(place, order.range, 3), self._hashes, self._hashes))
        high, documents, low = np.concatenate([np.zeros((3, 0), np.uint64), *found], axis=1)
        pieces = np.repeat(np.arange(len(found)), [columns.shape[1] for columns in found])
        is_later = np.ones(len(high), np.bool_)
        is_later[first_of_each(np.stack((high, low), axis=1))] = False
        where = pieces[is_later]
        write_parts(
            duplicates_path(self._folder, order.range),
            -(-len(self._hashes) // BLOCK_PIECES),
            where // BLOCK_PIECES,
            np.stack((where.astype(np.uint64), documents[is_later])),
        )
        return Done.of(order.range, (sum(columns.nbytes for columns in found), len(high), 0))


def duplicates_path(folder: str | Path, number: int) -> Path:
    """The path of what was found in a range of hashes."""
    return Path(folder) / f"{number}.duplicates"


class FoundDuplicates:
    """The duplicates that `DuplicateFinder` found in all ranges. Memory: 16 bytes for each one of 256 pieces.

    Args:
        ranges: the files, or the URLs, of what was found in each range; there is at least one.
        hashes: the names of the files of hashes, in the order that the finders had.
    """

    def __init__(self, ranges: Sequence[Path | str], hashes: Sequence[Path | str]) -> None:
        self._ranges = ranges
        self._numbers = {Path(name).name: number for number, name in enumerate(hashes)}
        self._block = -1
        self._pieces = self._documents = np.zeros(0, np.int64)

    def is_new(self, name: str, hashes: HashArray) -> NDArray[np.bool_]:
        """(n,) whether each document of a piece is seen for the first time.

        Args:
            name: the name of its file of hashes.
            hashes: (n, 2) the hashes of its documents; n is at least 1.
        """
        number = self._numbers[name]
        if number // BLOCK_PIECES != self._block:
            self._load(number // BLOCK_PIECES)
        found = np.zeros(len(hashes), np.bool_)
        found[first_of_each(hashes)] = True
        first, last = np.searchsorted(self._pieces, [number, number + 1])
        found[self._documents[first:last]] = False
        return found

    def _load(self, block: int) -> None:
        found = each(lambda place: read_part(place, block, 2), self._ranges, self._ranges)
        pieces, documents = np.concatenate(list(found), axis=1).astype(np.int64)
        order = np.argsort(pieces, kind="stable")
        self._pieces, self._documents, self._block = pieces[order], documents[order], block
