"""Exact duplicates: which texts of a run were met before, told by their 128-bit hashes.

The hashes lie in sorted runs, each at least `_RATIO` times as long as the next. A batch becomes the last run, and the
last is merged into the one before, in place, while it is too long beside it. Lengths, 10 new hashes at a time, ratio 8:

    10  20  30 ... 80  80+10  100 ... 160  160+10  160+20  190 ... 640  640+10 ... 640+80  640+80+10  740

A look-up is a short bisection a run, and there are at most log8(n / batch) + 2 runs. Two texts count as equal when
their hashes are: among 10^9 different texts the chance of one wrong pair is about 10^-21, unless somebody constructs
it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InputError, StoreError

HashArray = NDArray[np.uint64]
"""(n, 2) uint64: the high and the low half of each 128-bit hash."""

HASH_BYTES = 16
IndexArray = NDArray[np.int64]
_RATIO = 8
_CHUNK = 1 << 16
"""Hashes of a run that a merge moves at a time; its working memory is some multiples of this."""

_PAIR = np.dtype("V16")
"""Both halves as one item: NumPy moves these several times as fast as rows of two."""

_LOAD = 1 << 20
"""Hashes read at a time."""


def hash_texts(columns: Sequence[Sequence[str]]) -> HashArray:
    """The hash of each record: xxh3_128 of its text's UTF-8, or of the 16-byte hashes of its texts one after another.

    The second form, for several fields, has no ambiguity: ``("ab", "c")`` and ``("a", "bc")`` differ.

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


class Seen:
    """A set of hashes that says of each new one whether it is the first of its kind.

    Memory, measured: 16.2 bytes a hash, and at the peak of a merge below 19 from 10^7 hashes on, 23 at 10^6. One to two
    million hashes a CPU second in batches of some thousand; small batches cost more.
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
        """(n,) bool: True where a hash is seen for the first time; of equal ones in the batch that is the first.

        Args:
            hashes: (n, 2) uint64, as `hash_texts` gives them.
        """
        is_first = np.zeros(len(hashes), np.bool_)
        if not len(hashes):
            return is_first
        order = _first_of_each(hashes)
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
    def load(cls, path: str | Path, num_hashes: int | None = None) -> Seen:
        """The set of the first hashes of a file that holds them as 16 bytes each, two little-endian uint64.

        Args:
            path: the file; it may be longer.
            num_hashes: how many count; None takes all.

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
                            "it was cut short: begin the run anew with --restart"
                        )
                    if not seen.add(values.astype(np.uint64).reshape(-1, 2)).all():
                        raise StoreError(
                            f"{path}: a hash is there twice, but only first ones are kept; it was changed: "
                            "begin the run anew with --restart"
                        )
        except OSError as error:
            raise InputError(f"{path}: the hashes cannot be read: {error.strerror or error}") from error
        return seen

    def _settle(self) -> None:
        """Merge from the end until each run is `_RATIO` times as long as the next."""
        runs = self._runs
        while len(runs) > 1 and len(runs[-1]) * _RATIO > len(runs[-2]):
            small = runs.pop()
            runs[-1].merge(small.hashes)


def _first_of_each(hashes: HashArray) -> IndexArray:
    """Places of the first occurrence of each different hash, in the order of the hashes."""
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
    """Different hashes in ascending order, and for each value of their first bits where those begin.

    That directory has an entry for 32 to 64 hashes: a look-up touches two or three places in memory, not twenty.
    """

    def __init__(self, hashes: HashArray) -> None:
        self.hashes = np.ascontiguousarray(hashes, np.uint64)
        self._index()

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.hashes.nbytes + self._begins.nbytes

    def contains(self, hashes: HashArray) -> NDArray[np.bool_]:
        """(n,) bool: the hash is in the run."""
        buckets = (hashes[:, 0] >> self._shift).astype(np.int64)
        at = _lower_bounds(self.hashes, hashes, self._begins[buckets], self._begins[buckets + 1])
        flat = self.hashes.reshape(-1)
        place = 2 * np.minimum(at, len(self) - 1)
        same: NDArray[np.bool_] = flat.take(place) == hashes[:, 0]
        if same.any():
            same &= flat.take(place + 1) == hashes[:, 1]
        return same

    def merge(self, added: HashArray) -> None:
        """Take in sorted hashes, none of which is here.

        The run grows in place (the system moves pages, not bytes) and is filled from the end, a chunk at a time, so
        that the peak of memory is the result and some chunks.
        """
        end, rest = len(self), len(added)
        self.hashes.resize((end + rest, 2), refcheck=False)
        while rest:
            begin = max(end - _CHUNK, 0)
            chunk = self.hashes[begin:end].copy()
            # Those that belong before the chunk stay for the next one.
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


def _positions(run: HashArray, hashes: HashArray) -> IndexArray:
    """(n,) for each hash the number of hashes in the sorted run that are smaller."""
    high = np.ascontiguousarray(run[:, 0])
    begins = np.searchsorted(high, hashes[:, 0])
    ends = np.searchsorted(high, hashes[:, 0], side="right")
    return _lower_bounds(run, hashes, begins, ends)


def _lower_bounds(run: HashArray, hashes: HashArray, begins: IndexArray, ends: IndexArray) -> IndexArray:
    """(n,) for each hash the first place in ``[begin, end)`` of the sorted run that is not smaller, or its end."""
    flat = run.reshape(-1)
    high, low = np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])
    # Leaps of 2^k, 2^(k-1), ..., 1, each taken where it stays among the smaller ones.
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
