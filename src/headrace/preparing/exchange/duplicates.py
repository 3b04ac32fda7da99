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
commits the pieces reads what was found (`FoundDuplicates`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.serving import Done
from headrace.errors import InputError, StoreError
from headrace.preparing.columns import Column, IntArray, Rows
from headrace.preparing.exchange.parts import (
    NumberedDocuments,
    at,
    decode_frames,
    for_each,
    joined,
    parts_of,
    read_part,
    write_parts,
)
from headrace.preparing.messages import FindTask

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

_HASH_DTYPES: Final = (np.dtype(np.uint64),)


def write_hashes(path: Path, num_ranges: int, hashes: HashArray) -> None:
    """Write the different hashes of a piece as a file of parts, one for each range: high halves, documents, low halves.

    Raises:
        OutputError: the system refuses a write.
    """
    first = first_of_each(hashes)
    high, low = hashes[first].T
    write_parts(
        path,
        num_ranges,
        parts_of(high, num_ranges),
        NumberedDocuments(high, first, [(low, np.ones(len(low), np.int64))]),
    )


class DuplicateFinder:
    """Finds the duplicates among the hashes of a range, in a worker. Memory: about 120 bytes for each hash.

    The result is a file of parts: part k tells of the pieces from 256 k on. The keys are the numbers of pieces, and the
    numbers are the documents in these that have the same text as a document of an earlier piece.
    """

    def __init__(self, work: Path | str, folder: str, hashes: Sequence[str]) -> None:
        self._work = work
        self._folder = folder
        self._hashes = hashes

    def run(self, order: FindTask) -> Done:
        """Find the duplicates of a range.

        Raises:
            OutputError: a file of hashes is damaged or cannot be read, or the result cannot be written.
        """
        frames: list[NumberedDocuments] = []
        pieces: list[IntArray] = []
        size = 0
        read = for_each(self._work, lambda name: read_part(at(self._work, name), order.range), self._hashes)
        for piece, (name, data) in enumerate(zip(self._hashes, read, strict=True)):
            size += data.size
            for frame in decode_frames(data, _HASH_DTYPES, at(self._work, name)):
                frames.append(frame)
                pieces.append(np.full(len(frame.keys), piece, np.int64))
        high, documents, ((low, _),) = joined(frames, _HASH_DTYPES)
        is_later = np.ones(len(high), np.bool_)
        is_later[first_of_each(np.stack((high, low), axis=1))] = False
        where = np.concatenate([np.zeros(0, np.int64), *pieces])[is_later]
        write_parts(
            duplicates_path(self._folder, order.range),
            -(-len(self._hashes) // BLOCK_PIECES),
            where // BLOCK_PIECES,
            NumberedDocuments(where.astype(np.uint64), documents[is_later], []),
        )
        return Done.of(order.range, (size, len(high), 0))


def duplicates_path(folder: str | Path, number: int) -> Path:
    """The path of what was found in a range of hashes."""
    return Path(folder) / f"{number}.duplicates"


class FoundDuplicates:
    """The duplicates that `DuplicateFinder` found in all ranges. Memory: 16 bytes for each one of 256 pieces.

    Args:
        ranges: the files, or the URLs, of what was found in each range; there is at least one.
        hashes: the names of the files of hashes, as the finders had them.
    """

    def __init__(self, ranges: Sequence[Path | str], hashes: Sequence[str]) -> None:
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
        read = for_each(self._ranges[0], lambda path: read_part(path, block), self._ranges)
        found = zip(self._ranges, read, strict=True)
        frames = [frame for path, data in found for frame in decode_frames(data, (), path)]
        pieces, documents, _ = joined(frames, ())
        order = np.argsort(pieces, kind="stable")
        self._pieces, self._documents, self._block = pieces[order].astype(np.int64), documents[order], block
