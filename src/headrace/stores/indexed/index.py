"""The arrays of one ``.idx``: where they lie in the file, read where they are needed and never loaded whole.

Where the arrays of an index lie in its file: what all formats with a ``.bin`` and an ``.idx`` have in common.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.arguments import IntArray, TokenArray, read_only


class ArrayPlace(msgspec.Struct, frozen=True):
    """One array of little-endian integers.

    Attributes:
        name: what its entries are.
        offset: byte of the first.
        dtype: as NumPy writes it.
        count: entries.
        stride: bytes from one entry to the next; 0 where they are adjacent.
        scale: what each entry is to be multiplied by: the format counts elements, we count bytes.
    """

    name: str
    offset: int
    dtype: str
    count: int
    stride: int = 0
    scale: int = 1

    @property
    def step(self) -> int:
        """Bytes from one entry to the next."""
        return self.stride or np.dtype(self.dtype).itemsize

    @property
    def end(self) -> int:
        """Byte behind the last entry."""
        return self.offset + ((self.count - 1) * self.step + np.dtype(self.dtype).itemsize if self.count else 0)


class Arrays(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays of one ``.idx``.

    Attributes:
        dtype: of the tokens in the ``.bin``.
        header_bytes: bytes before the arrays.
        sizes: (N,) tokens of each sequence.
        pointers: (N,) where each sequence begins in the ``.bin``.
        bounds: (D,) sequences up to the beginning of each document; None where each sequence is a document.
        modes: (N,) a number for the kind of each sequence; None where there is none.
        end: bytes of the file that mean something.
        shift: what is to be subtracted from a stored number to have the token.
    """

    dtype: np.dtype[Any]
    header_bytes: int
    sizes: ArrayPlace
    pointers: ArrayPlace
    bounds: ArrayPlace | None = None
    modes: ArrayPlace | None = None
    end: int
    shift: int = 0

    def describe(self, begin: int, end: int) -> str:
        """What bytes ``begin`` to ``end`` of the ``.idx`` hold, in words."""
        found = ["header"] if begin < min(end, self.header_bytes) else []
        for place in (self.sizes, self.pointers, self.bounds, self.modes):
            if place is not None:
                low, high = max(begin, place.offset), min(end, place.end)
                if low < high:
                    first, last = (low - place.offset) // place.step, (high - 1 - place.offset) // place.step
                    found.append(f"{place.name} {first} to {last}")
        return ", ".join(found) or "nothing that is used"


def token_ids(stored: TokenArray, shift: int, path: str) -> TokenArray:
    """The tokens that stored numbers mean; a fresh array where they are shifted.

    Raises:
        StoreError: a stored number that no token gives.
    """
    if not shift:
        return stored
    if not stored.all():
        raise StoreError(
            f"{path}: holds the number 0, which a file of ids + 1 never does; open it with dialect='megatron', which"
            " takes the ids as they are"
        )
    ids: TokenArray = stored - stored.dtype.type(shift)
    return ids


CHUNK: Final = 1 << 15
"""Entries that one pass over an array has in memory at a time: they fit into the processor's cache, and are no more
bytes than the allocator keeps at hand; twice as many take twice as long."""

_WINDOW: Final = 512
"""Entries that a search reads at once where the file is not mapped: 4 KiB."""


class IntegerColumn:
    """One little-endian integer array in a file, as int64, at any alignment and any step from entry to entry.

    Args:
        reader: brings the bytes.
        path: the file.
        offset: byte of the first entry.
        dtype: of the entries.
        count: how many there are.
        stride: bytes from one entry to the next; 0 where they are adjacent.
        scale: what each entry is multiplied by.
    """

    def __init__(
        self,
        reader: Reader,
        path: str,
        offset: int,
        dtype: DTypeLike,
        count: int,
        *,
        stride: int = 0,
        scale: int = 1,
    ) -> None:
        self._reader = reader
        self._path = path
        self._offset = offset
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._count = count
        self._step = stride or self._dtype.itemsize
        self._scale = scale
        # Only such an array can be searched without a copy of it.
        self._is_plain = self._dtype == np.dtype("<i8") and self._step == 8 and sys.byteorder == "little"
        # Made once: these are the keys and the makers that the reader keeps views by.
        self._array_key = (offset, "array")
        self._memory_key = (offset, "memory")

    @classmethod
    def at(cls, reader: Reader, path: str, place: ArrayPlace) -> IntegerColumn:
        """The array that lies at a place."""
        return cls(reader, path, place.offset, place.dtype, place.count, stride=place.stride, scale=place.scale)

    def __len__(self) -> int:
        return self._count

    def read(self, begin: int, end: int) -> IntArray:
        """(end - begin,) int64: a copy of the entries ``begin`` to ``end``, which lie in the array."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        found = self._from_file(begin, end) if mapped is None else mapped[begin:end]
        return self._scaled(found.astype(np.int64, copy=mapped is not None))

    def stored(self, begin: int, end: int) -> NDArray[Any]:
        """(end - begin,) the same in the dtype of the file, not scaled."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        return self._from_file(begin, end) if mapped is None else mapped[begin:end].copy()

    def take(self, at: IntArray) -> IntArray:
        """(n,) int64: the entries at these places, which lie in the array."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        if mapped is not None:
            return self._scaled(mapped[at].astype(np.int64, copy=False))
        item = self._dtype.itemsize
        data = self._reader.read_ranges(self._path, self._offset + at * self._step, np.full(len(at), item, np.int64))
        return self._scaled(data.view(self._dtype).astype(np.int64, copy=False))

    def array(self) -> NDArray[Any]:
        """(count,) all entries as they are in the file, read-only: a view of the mapping, else read. Not scaled."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        return read_only(self._from_file(0, self._count)) if mapped is None else mapped

    def last_at_most(self, values: IntArray) -> IntArray:
        """(n,) int64: the place of the last entry that is at most each value, in a non-decreasing array of int64.

        The first entry must be at most every value. O(log entries) each, about 1.5 us where the file is mapped.
        """
        memory = self._reader.kept(self._path, self._memory_key, self._memory) if self._is_plain else None
        if memory is not None:
            # np.searchsorted would copy the unaligned array; bisect reads only the entries it compares.
            values = values if self._scale == 1 else values // self._scale
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

    def _from_file(self, begin: int, end: int) -> NDArray[Any]:
        """(end - begin,) in the dtype of the file."""
        count = end - begin
        if not count:
            return np.empty(0, self._dtype)
        size = (count - 1) * self._step + self._dtype.itemsize
        data = self._reader.read_ranges(self._path, np.array([self._offset + begin * self._step]), np.array([size]))
        return np.ndarray((count,), self._dtype, data, strides=(self._step,))

    def _scaled(self, entries: IntArray) -> IntArray:
        if self._scale == 1 or not len(entries):
            return entries
        highest = np.iinfo(np.int64).max // self._scale
        if entries.max() > highest or entries.min() < -highest:
            raise StoreError(f"{self._path}: a pointer to element {np.abs(entries).max()} lies in no file")
        return entries * self._scale

    def view(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        """(count,) the entries within the bytes of the whole file, without a copy. Not scaled."""
        if not self._count:
            return read_only(np.empty(0, self._dtype))
        return np.ndarray((self._count,), self._dtype, data, self._offset, (self._step,))

    def _memory(self, data: NDArray[np.uint8]) -> memoryview:
        return data.data[self._offset : self._offset + 8 * self._count].cast("q")


class OneSequenceEach:
    """The document indices where each sequence is a document: 0, 1, 2, ... N; nothing is kept."""

    def __init__(self, num_sequences: int) -> None:
        self._count = num_sequences + 1

    def __len__(self) -> int:
        return self._count

    def read(self, begin: int, end: int) -> IntArray:
        """(end - begin,) int64: the numbers themselves."""
        return np.arange(begin, end)

    def take(self, at: IntArray) -> IntArray:
        """(n,) int64: the places themselves."""
        return at

    def last_at_most(self, values: IntArray) -> IntArray:
        """(n,) int64: the values themselves."""
        return values

    def array(self) -> IntArray:
        """(N + 1,) int64, made anew."""
        return np.arange(self._count)


class Index:
    """One index: its arrays, and the checks that cost O(1).

    Args:
        reader: brings the bytes.
        path: the ``.idx``, which was found to be at least ``arrays.end`` bytes long.
        arrays: where they lie.
        bin_bytes: size of the ``.bin``.

    Attributes:
        arrays: where they lie, and the dtype of the tokens.
        sizes: (N,) tokens of each sequence.
        pointers: (N,) byte of the ``.bin`` where each sequence begins.
        bounds: (D,) sequences up to the beginning of each document; the last is N.
        modes: (N,) the kind of each sequence, where the index has it.
        last_byte: where the last sequence ends in the ``.bin``, in bytes; 0 without sequences.

    Raises:
        StoreError: the first or last entries of the arrays do not fit the files.
    """

    def __init__(self, reader: Reader, path: str, arrays: Arrays, bin_bytes: int) -> None:
        self._reader = reader
        self.path = path
        self.size = reader.size(path)
        self.arrays = arrays
        self._bin_bytes = bin_bytes
        self.sizes = IntegerColumn.at(reader, path, arrays.sizes)
        self.pointers = IntegerColumn.at(reader, path, arrays.pointers)
        bounds, modes = arrays.bounds, arrays.modes
        self.bounds = OneSequenceEach(len(self.sizes)) if bounds is None else IntegerColumn.at(reader, path, bounds)
        self.modes = None if modes is None else IntegerColumn.at(reader, path, modes)
        self.last_byte = self._check_ends(bin_bytes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens in the ``.bin``."""
        return self.arrays.dtype

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return len(self.bounds) - 1

    def sequence(self, number: int) -> tuple[int, int]:
        """Tokens of one sequence, and the byte where it begins; about 0.8 us where the file is mapped."""
        views = self._reader.kept(self.path, "sizes and pointers", self._views)
        if views is None:
            return int(self.sizes.read(number, number + 1)[0]), int(self.pointers.read(number, number + 1)[0])
        sizes, pointers = views
        return sizes.item(number), pointers.item(number) * self.arrays.pointers.scale

    def _views(self, data: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
        # They die with the open file, as all that a reader keeps.
        return self.sizes.view(data), self.pointers.view(data)

    def for_pass(self) -> Index:
        """The same index for one pass over all entries, through `Reader.for_pass`."""
        return Index(self._reader.for_pass(), self.path, self.arrays, self._bin_bytes)

    def documents_of(self, sequences: IntArray) -> IntArray:
        """(n,) int64: the document that each sequence belongs to."""
        return self.bounds.last_at_most(sequences)

    def _check_ends(self, bin_bytes: int) -> int:
        path, count = self.path, len(self.sizes)
        first, last = self.bounds.take(np.array([0, len(self.bounds) - 1])).tolist()
        if self.arrays.bounds is not None and (first != 0 or last != count):
            lost = "; merging with GPT-NeoX and Aleph Alpha's builder lose the documents" if last == 0 else ""
            raise StoreError(
                f"{path}: byte {self.arrays.bounds.offset}: the document indices must go from 0 to {count} (the number"
                f" of sequences); found {first} to {last} in {len(self.bounds)} of them{lost}; open it with"
                " documents='sequences' to take each sequence as a document, or merge again"
            )
        if count == 0:
            return 0
        size = int(self.sizes.read(count - 1, count)[0])
        begin, pointer = self.pointers.take(np.array([0, count - 1])).tolist()
        end = int(pointer + size * self.dtype.itemsize)
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
