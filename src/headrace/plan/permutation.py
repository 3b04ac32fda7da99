"""Permutations of range(length) that are computed, not stored: any rank at once, O(1) memory, invertible.

From 65,536 elements on, the permutation is a Feistel network: a rank x is written in two digits
(left, right) = divmod(x, b) with a*b just above the length, and each round adds a keyed hash of one digit to the other,
modulo its base. Each round can be undone, so the whole is a bijection on range(a*b). A result beyond the length goes
through the network again until it lands inside (cycle walking). As a*b - length < a ~ sqrt(length), this concerns at
most one rank in 256, and not every second one as with power-of-two halves.

Below 65,536, where Feistel digits would be tiny, it is an explicit shuffle: the ranks are sorted by a keyed 48-bit
hash with the rank itself in the low 16 bits (so there are no ties, and the sort's algorithm does not matter). The
tables are kept in a cache of bounded size.

    length 10, key k:  hash(k, 0) .. hash(k, 9)  ->  sorted  ->  low 16 bits  =  [3 7 0 9 ...]

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), methods FE and cycle walking.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from math import isqrt
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import GOLDEN, IntArray, KeyArray, derive, derive_array, mix_array

SMALL = 1 << 16
"""Lengths below this are shuffled explicitly."""

_ROUNDS = 8
_TABLE_BYTES = 32 << 20
_MATRIX_ELEMENTS = 1 << 20

Table = NDArray[np.uint16]


def permute(ranks: IntArray, length: int, keys: int | KeyArray) -> IntArray:
    """Return (n,) int64: the element of the permutation at each of ``ranks``.

    ``ranks`` is (n,) int64 in [0, length); ``keys`` is one key for all, or (n,) uint64, one for each rank.
    About 0.1 us a rank; the table of a short length costs one sort.
    """
    return _apply(ranks, length, keys, inverse=False)


def unpermute(elements: IntArray, length: int, keys: int | KeyArray) -> IntArray:
    """Return (n,) int64: the rank of each of ``elements``; undoes ``permute`` at the same cost."""
    return _apply(elements, length, keys, inverse=True)


def permute_each(ranks: IntArray, lengths: IntArray, keys: KeyArray, rows: IntArray | None = None) -> IntArray:
    """Return (n,) int64: as ``permute``, but each rank has a length of its own.

    ``lengths`` is (n,) int64, each from 1 to 2^32. If many ranks have a length and a key in common, ``lengths`` and
    ``keys`` are (m,), one for each group, and ``rows`` is (n,) int64, the group of each rank: about 0.1 us a rank, and
    0.3 us without groups.

    All lengths use a Feistel network, which suits exchanges among many small groups at once. The permutations of a
    tiny length are not all equally likely.
    """
    return _each(ranks, lengths, keys, rows, inverse=False)


def unpermute_each(elements: IntArray, lengths: IntArray, keys: KeyArray, rows: IntArray | None = None) -> IntArray:
    """Return (n,) int64: the rank of each of ``elements``; undoes ``permute_each`` at the same cost."""
    return _each(elements, lengths, keys, rows, inverse=True)


def _each(values: IntArray, lengths: IntArray, keys: KeyArray, rows: IntArray | None, *, inverse: bool) -> IntArray:
    left_bases = np.sqrt((lengths - 1).astype(np.float64)).astype(np.int64) + 1
    right_bases = -(-lengths // left_bases)
    bases = left_bases.astype(np.uint64), right_bases.astype(np.uint64)
    rounds = _round_keys(keys)
    if rows is not None:
        bases = bases[0][rows], bases[1][rows]
        rounds = [key[rows] for key in rounds]
        lengths = lengths[rows]
    return _walked(values, bases, lengths, rounds, inverse=inverse)


def one_if_equal(keys: KeyArray) -> int | KeyArray:
    """Return the common key as an integer if all keys are equal, else the keys.

    The positions of a chunk mostly lie in one epoch, and one key is cheaper than many equal ones.
    """
    if keys.size and bool((keys == keys[0]).all()):
        return int(keys[0])
    return keys


def _apply(values: IntArray, length: int, keys: int | KeyArray, *, inverse: bool) -> IntArray:
    if length <= 1:
        return np.zeros_like(values)
    if length < SMALL:
        return _lookup(values, length, keys, inverse=inverse)
    return _feistel(values, length, keys, inverse=inverse)


def _feistel(values: IntArray, length: int, keys: int | KeyArray, *, inverse: bool) -> IntArray:
    left_digits = isqrt(length - 1) + 1
    bases = np.array(left_digits, dtype=np.uint64), np.array(-(-length // left_digits), dtype=np.uint64)
    return _walked(values, bases, np.array(length), _round_keys(keys), inverse=inverse)


def _walked(
    values: IntArray, bases: tuple[KeyArray, KeyArray], lengths: IntArray, keys: list[KeyArray], *, inverse: bool
) -> IntArray:
    """Send values through the network, and those that land beyond their length once more; each array is (n,) or ()."""

    def of(array: NDArray[Any], rows: IntArray) -> NDArray[Any]:
        return array[rows] if array.ndim else array

    result = _rounds(values, *bases, keys, inverse=inverse)
    outside = np.flatnonzero(result >= lengths)
    while outside.size:
        left, right = (of(base, outside) for base in bases)
        walked = _rounds(result[outside], left, right, [of(key, outside) for key in keys], inverse=inverse)
        result[outside] = walked
        outside = outside[walked >= of(lengths, outside)]
    return result


def _round_keys(keys: int | KeyArray) -> list[KeyArray]:
    if isinstance(keys, int):
        return [np.array(derive(keys, i), dtype=np.uint64) for i in range(_ROUNDS)]
    return [derive_array(keys, np.array([i])) for i in range(_ROUNDS)]


def _rounds(
    values: IntArray, left_base: KeyArray, right_base: KeyArray, keys: list[KeyArray], *, inverse: bool
) -> IntArray:
    digits = values.astype(np.uint64)
    left = digits // right_base
    right = digits - left * right_base
    steps = list(enumerate(keys))
    for i, key in reversed(steps) if inverse else steps:
        if i % 2 == 0:
            left = _turn(left, right, key, left_base, inverse=inverse)
        else:
            right = _turn(right, left, key, right_base, inverse=inverse)
    return (left * right_base + right).astype(np.int64)


def _turn(digit: KeyArray, other: KeyArray, key: KeyArray, base: KeyArray, *, inverse: bool) -> KeyArray:
    """Add a hash of ``other`` to ``digit``, modulo ``base`` (at most 2^31, so no product overflows)."""
    hashed = (other + key) * np.uint64(GOLDEN)
    hashed ^= hashed >> np.uint64(32)
    hashed *= np.uint64(0xD6E8FEB86659FD93)
    hashed >>= np.uint64(32)
    hashed *= base
    hashed >>= np.uint64(32)
    if inverse:
        hashed = base - hashed
    hashed += digit
    # min(x, x - base) is x modulo base for x < 2 base: below base the difference wraps to a huge number.
    moved: KeyArray = np.minimum(hashed, hashed - base)
    return moved


T = TypeVar("T")


class RecentTables(threading.local, Generic[T]):
    """The most recently used tables, for each thread at most ``most_bytes``, but always at least ``least``.

    Each thread has its own cache and there is no lock, so that a fork during another thread's call leaves none held.
    """

    def __init__(self, most_bytes: int, num_bytes: Callable[[T], int], least: int = 0) -> None:
        self._tables: OrderedDict[tuple[Any, ...], T] = OrderedDict()
        self._bytes = 0
        self._most_bytes, self._num_bytes, self._least = most_bytes, num_bytes, least

    def get(self, name: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return the table of this name, which ``make`` makes if it is not kept."""
        if (known := self._tables.get(name)) is not None:
            self._tables.move_to_end(name)
            return known
        table = self._tables[name] = make()
        self._bytes += self._num_bytes(table)
        while self._bytes > self._most_bytes and len(self._tables) > self._least:
            self._bytes -= self._num_bytes(self._tables.popitem(last=False)[1])
        return table


_tables: RecentTables[Table] = RecentTables(_TABLE_BYTES, lambda table: table.nbytes)


def _table(length: int, key: int, *, inverse: bool) -> Table:
    def make() -> Table:
        row: Table = _shuffle(length, np.array([key], dtype=np.uint64), inverse=inverse)[0]
        return row

    return _tables.get((length, key, inverse), make)


def _shuffle(length: int, keys: KeyArray, *, inverse: bool) -> Table:
    """Return (len(keys), length) uint16: for each key a row with range(length) in the order of its hashes."""
    numbers = np.arange(length, dtype=np.uint64)
    hashes = mix_array(mix_array(keys)[:, None] + numbers * np.uint64(GOLDEN))
    hashes &= np.uint64(0xFFFF_FFFF_FFFF_0000)
    hashes |= numbers
    hashes.sort(axis=1)
    table: Table = hashes.astype(np.uint16)
    if inverse:
        inverted = np.empty_like(table)
        np.put_along_axis(inverted, table.astype(np.int64), numbers.astype(np.uint16)[None, :], axis=1)
        return inverted
    return table


def _lookup(values: IntArray, length: int, keys: int | KeyArray, *, inverse: bool) -> IntArray:
    if isinstance(keys, int):
        return _table(length, keys, inverse=inverse)[values].astype(np.int64)
    distinct, which = np.unique(keys, return_inverse=True)
    result = np.empty_like(values)
    if distinct.size <= 8:
        for number, key in enumerate(distinct.tolist()):
            chosen = which == number
            result[chosen] = _table(length, key, inverse=inverse)[values[chosen]]
        return result
    # Many short epochs at once: make their tables as rows of one matrix, a limited number of rows at a time.
    rows = max(1, _MATRIX_ELEMENTS // length)
    for first in range(0, distinct.size, rows):
        chosen = (which >= first) & (which < first + rows)
        matrix = _shuffle(length, distinct[first : first + rows], inverse=inverse)
        result[chosen] = matrix[which[chosen] - first, values[chosen]]
    return result
