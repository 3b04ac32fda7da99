"""The arrays of one ``.idx``, read where they are needed and never loaded whole."""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.indexed_layout import HEADER, parse_header
from headrace.stores.store import IntArray

CHUNK: Final = 1 << 16
"""Entries that one pass over an array has in memory at a time: they fit into the processor's cache."""


_WINDOW: Final = 512
"""Entries that a search reads at once where the file is not mapped: 4 KiB."""


class Column:
    """One little-endian integer array in a file, as int64, at any alignment."""

    def __init__(self, reader: Reader, path: str, offset: int, dtype: DTypeLike, count: int) -> None:
        self._reader = reader
        self._path = path
        self._offset = offset
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._count = count
        # Made once: these are the keys and the makers that the reader keeps views by.
        self._array_key = (offset, "array")
        self._memory_key = (offset, "memory")

    def __len__(self) -> int:
        return self._count

    def read(self, begin: int, end: int) -> IntArray:
        """(end - begin,) int64: a copy of the entries ``begin`` to ``end``, which lie in the array."""
        mapped = self._reader.kept(self._path, self._array_key, self._array)
        if mapped is not None:
            return mapped[begin:end].astype(np.int64)
        item = self._dtype.itemsize
        data = self._reader.read_ranges(
            self._path, np.array([self._offset + begin * item]), np.array([(end - begin) * item])
        )
        return data.view(self._dtype).astype(np.int64, copy=False)

    def take(self, at: IntArray) -> IntArray:
        """(n,) int64: the entries at these places, which lie in the array."""
        mapped = self._reader.kept(self._path, self._array_key, self._array)
        if mapped is not None:
            return mapped[at].astype(np.int64, copy=False)
        item = self._dtype.itemsize
        data = self._reader.read_ranges(self._path, self._offset + at * item, np.full(len(at), item, np.int64))
        return data.view(self._dtype).astype(np.int64, copy=False)

    def last_at_most(self, values: IntArray) -> IntArray:
        """(n,) int64: the place of the last entry that is at most each value, in a non-decreasing array of int64.

        The first entry must be at most every value. O(log entries) each, about 1.5 us where the file is mapped.
        """
        memory = self._reader.kept(self._path, self._memory_key, self._memory)
        if memory is not None and sys.byteorder == "little":
            # np.searchsorted would copy the unaligned array; bisect reads only the entries it compares.
            return np.fromiter(map(partial(bisect_right, memory), values.tolist()), np.int64, len(values)) - 1
        if not len(values):
            return np.zeros(0, np.int64)
        # Halve until a window of entries is left, which one read brings. Invariant: entry[low] <= value < entry[high].
        low, high = np.zeros(len(values), np.int64), np.full(len(values), self._count)
        width = min(_WINDOW, self._count)
        for _ in range((self._count // width).bit_length()):
            middle = (low + high) >> 1
            below = self.take(middle) <= values
            low, high = np.where(below, middle, low), np.where(below, high, np.maximum(middle, low + 1))
        first = np.minimum(low, self._count - width)
        windows = self.take((first[:, None] + np.arange(width)).ravel()).reshape(-1, width)
        below_in_window: IntArray = np.count_nonzero(windows <= values[:, None], axis=1)
        return first + below_in_window - 1

    def _array(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        return np.frombuffer(data, self._dtype, self._count, self._offset)

    def _memory(self, data: NDArray[np.uint8]) -> memoryview:
        return data.data[self._offset : self._offset + 8 * self._count].cast("q")


class Index:
    """One ``.idx``: its layout, its arrays, and the checks that cost O(1).

    Attributes:
        sizes: (N,) tokens of each sequence.
        pointers: (N,) byte of the ``.bin`` where each sequence begins.
        bounds: (D,) sequences up to the beginning of each document; the last is N.
        last_byte: where the last sequence ends in the ``.bin``, in bytes; 0 without sequences.
    """

    def __init__(self, reader: Reader, path: str, bin_bytes: int) -> None:
        self.path = path
        self.size = reader.size(path)
        begin = np.zeros(1, np.int64)
        header = reader.read_ranges(path, begin, begin + min(self.size, HEADER.size)).tobytes()
        layout = self.layout = parse_header(path, header, self.size)
        self.sizes = Column(reader, path, layout.sizes_at, "<i4", layout.num_sequences)
        self.pointers = Column(reader, path, layout.pointers_at, "<i8", layout.num_sequences)
        self.bounds = Column(reader, path, layout.bounds_at, "<i8", layout.num_bounds)
        self.last_byte = self._check_ends(bin_bytes)

    def documents_of(self, sequences: IntArray) -> IntArray:
        """(n,) int64: the document that each sequence belongs to."""
        return self.bounds.last_at_most(sequences)

    def _check_ends(self, bin_bytes: int) -> int:
        path, count = self.path, len(self.sizes)
        first, last = self.bounds.take(np.array([0, len(self.bounds) - 1])).tolist()
        if first != 0 or last != count:
            hint = "; tools that merge shards may lose the documents: merge again" if len(self.bounds) == 1 else ""
            raise StoreError(
                f"{path}: byte {self.layout.bounds_at}: the document indices must go from 0 to {count} (the number of"
                f" sequences); found {first} to {last} in {len(self.bounds)} of them{hint}"
            )
        if count == 0:
            return 0
        size = int(self.sizes.read(count - 1, count)[0])
        begin, pointer = self.pointers.take(np.array([0, count - 1])).tolist()
        end = int(pointer + size * self.layout.dtype.itemsize)
        if begin < 0 or pointer < 0 or size < 0:
            raise StoreError(
                f"{path}: a negative pointer or size: sequence 0 begins at byte {begin}, sequence {count - 1} at byte"
                f" {pointer} and has {size} tokens"
            )
        if end > bin_bytes:
            raise StoreError(
                f"{path}: sequence {count - 1}, the last, ends at byte {end} of the .bin, which has {bin_bytes} bytes;"
                " the .bin is cut short, or belongs to another .idx"
            )
        return end
