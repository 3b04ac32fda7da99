"""From a key to the numbers that it may have: sorted hashes, 16 bytes a sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from headrace.stores.types import IntArray


class KeyTable:
    """The keys of all samples, by their 64-bit hashes.

    Args:
        keys: of sample 0, 1, ...; they are not kept.
        count: how many; -1: unknown.
    """

    def __init__(self, keys: Iterable[str], count: int) -> None:
        hashes = np.fromiter((_hash(key) for key in keys), np.uint64, count)
        self._numbers: IntArray = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._numbers]

    def candidates(self, key: str) -> list[int]:
        """Numbers of samples whose key has the same hash, ascending; another key has it once in 2^64."""
        wanted = np.uint64(_hash(key))
        first, last = (int(np.searchsorted(self._hashes, wanted, side=side)) for side in ("left", "right"))
        return [int(number) for number in self._numbers[first:last]]

    def repeated(self) -> Iterator[list[int]]:
        """Numbers of samples whose keys seem to be the same, each group ascending."""
        same = self._hashes[1:] == self._hashes[:-1]
        firsts = np.flatnonzero(same & ~np.concatenate(([False], same[:-1])))
        for first in firsts.tolist():
            last = first + 1 + int(np.argmin(np.append(same[first:], False)))
            yield [int(number) for number in self._numbers[first:last]]


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
