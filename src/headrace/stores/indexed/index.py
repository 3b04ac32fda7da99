"""The arrays of one ``.idx``, for all formats with a ``.bin`` and an ``.idx``, and the token stream that they describe.

Only the needed parts of the arrays are read. In nearly every shard the sequences lie one after another, so a position
in the stream times the size of a token is a position in the ``.bin``. An ``.idx`` may also select or reorder sequences
of a ``.bin``; then the stream is scattered over the file. Headrace does not assume either: it looks at every pointer
once, which takes 2 to 3 ns each.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.arguments import IntArray, TokenArray, read_only
from headrace.stores.segmented import cut_at_bounds


class ArrayPlace(msgspec.Struct, frozen=True):
    """The place of one array of little-endian integers in a file.

    Attributes:
        name: what the entries are, for messages.
        offset: byte of the first entry.
        dtype: dtype of the entries, in NumPy's notation.
        count: number of entries.
        stride: bytes from one entry to the next; 0 if they are adjacent.
        scale: factor of each entry: some formats count elements, where Headrace counts bytes.
    """

    name: str
    offset: int
    dtype: str
    count: int
    stride: int = 0
    scale: int = 1

    @property
    def step(self) -> int:
        """Bytes from one entry to the next, also if they are adjacent."""
        return self.stride or np.dtype(self.dtype).itemsize

    @property
    def end(self) -> int:
        """The byte after the last entry."""
        return self.offset + ((self.count - 1) * self.step + np.dtype(self.dtype).itemsize if self.count else 0)


class Arrays(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays of one ``.idx``.

    Attributes:
        dtype: dtype of the tokens in the ``.bin``.
        header_bytes: number of bytes before the arrays.
        sizes: (N,) number of tokens in each sequence.
        pointers: (N,) where each sequence begins in the ``.bin``.
        bounds: (D,) number of sequences before each document; None if each sequence is a document.
        modes: (N,) a number for the kind of each sequence; None if there are no modes.
        end: number of bytes of the file that are in use.
        shift: number to subtract from a stored number to get the token.
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
        """Describe what the bytes ``begin`` to ``end`` of the ``.idx`` hold."""
        found = ["header"] if begin < min(end, self.header_bytes) else []
        for place in (self.sizes, self.pointers, self.bounds, self.modes):
            if place is not None:
                low, high = max(begin, place.offset), min(end, place.end)
                if low < high:
                    first, last = (low - place.offset) // place.step, (high - 1 - place.offset) // place.step
                    found.append(f"{place.name} {first} to {last}")
        return ", ".join(found) or "unused bytes"


def token_ids(stored: TokenArray, shift: int, path: str) -> TokenArray:
    """Return the tokens of stored numbers; a new array if the numbers are shifted.

    Raises:
        StoreError: a stored number stands for no token.
    """
    if not shift:
        return stored
    if not stored.all():
        raise StoreError(
            f"{path}: holds the number 0, which a file of ids + 1 never holds; open it with dialect='megatron', which"
            " does not shift the ids"
        )
    ids: TokenArray = stored - stored.dtype.type(shift)
    return ids


CHUNK: Final = 1 << 15
"""Entries that a pass over an array holds in memory at a time. They fit into the processor's cache and into the memory
that the allocator keeps for reuse; with twice as many, a pass takes twice as long."""

_WINDOW: Final = 512
"""Entries that a search reads at once if the file is not mapped: 4 KiB."""


class IntegerColumn:
    """Reads a little-endian integer array in a file as int64, with any alignment and any step between entries.

    Args:
        reader: reads the bytes.
        path: the file.
        place: where the array lies in the file.
        most: the largest number of tokens in a sequence. It is checked where sums of numbers may overflow: for sizes of
            64 bits, which Megatron's are not.
    """

    def __init__(self, reader: Reader, path: str, place: ArrayPlace, *, most: int | None = None) -> None:
        self._most = most if np.dtype(place.dtype).itemsize == 8 else None
        self._reader = reader
        self._path = path
        self._offset = place.offset
        self._dtype: np.dtype[Any] = np.dtype(place.dtype)
        self._count = place.count
        self._step = place.step
        self._scale = place.scale
        # Only such an array can be searched without copying it.
        self._is_plain = self._dtype == np.dtype("<i8") and self._step == 8 and sys.byteorder == "little"
        # The keys under which the reader keeps views, made once since every read needs one.
        self._array_key = (place.offset, "array")
        self._memory_key = (place.offset, "memory")

    def __len__(self) -> int:
        return self._count

    def read(self, begin: int, end: int) -> IntArray:
        """Return a copy of the entries ``begin`` to ``end``, which lie in the array, as (end - begin,) int64."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        found = self._from_file(begin, end) if mapped is None else mapped[begin:end]
        self._check_most(found)
        return self._scaled(found.astype(np.int64, copy=mapped is not None))

    def stored(self, begin: int, end: int) -> NDArray[Any]:
        """Return the same entries as ``read``, in the dtype of the file and not scaled."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        return self._from_file(begin, end) if mapped is None else mapped[begin:end].copy()

    def take(self, at: IntArray) -> IntArray:
        """Return the entries at these positions, which lie in the array, as (n,) int64."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        if mapped is not None:
            found = mapped[at]
        else:
            lengths = np.full(len(at), self._dtype.itemsize, np.int64)
            data = self._reader.read_ranges(self._path, self._offset + at * self._step, lengths)
            found = data.view(self._dtype)
        self._check_most(found)
        return self._scaled(found.astype(np.int64, copy=False))

    def array(self) -> NDArray[Any]:
        """Return all (count,) entries as they are in the file, read-only and not scaled; a view if it is mapped."""
        mapped = self._reader.kept(self._path, self._array_key, self.view)
        return read_only(self._from_file(0, self._count)) if mapped is None else mapped

    def last_at_most(self, values: IntArray) -> IntArray:
        """Return the position of the last entry that is at most each value, (n,) int64.

        The array must not decrease, and its first entry must be at most every value. O(log entries) each, about 1.5 us
        if the file is mapped.
        """
        memory = self._reader.kept(self._path, self._memory_key, self._memory) if self._is_plain else None
        if memory is not None:
            # np.searchsorted would copy the unaligned array; bisect reads only the entries that it compares.
            values = values if self._scale == 1 else values // self._scale
            return np.fromiter(map(partial(bisect_right, memory), values.tolist()), np.int64, len(values)) - 1
        if not len(values):
            return np.zeros(0, np.int64)
        # Halve until a window of entries is left, which is read at once. Invariant: entry[low] <= value < entry[high].
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
        count = end - begin
        if not count:
            return np.empty(0, self._dtype)
        size = (count - 1) * self._step + self._dtype.itemsize
        data = self._reader.read(self._path, self._offset + begin * self._step, size)
        return np.ndarray((count,), self._dtype, data, strides=(self._step,))

    def _check_most(self, sizes: NDArray[Any]) -> None:
        if self._most is not None and len(sizes) and sizes.max() > self._most:
            raise StoreError(
                f"{self._path}: a sequence has {sizes.max()} tokens; the .bin has room for at most {self._most}"
            )

    def _scaled(self, entries: IntArray) -> IntArray:
        if self._scale == 1 or not len(entries):
            return entries
        highest = np.iinfo(np.int64).max // self._scale
        if entries.max() > highest or entries.min() < -highest:
            raise StoreError(f"{self._path}: a pointer to element {np.abs(entries).max()} is beyond any file")
        return entries * self._scale

    def view(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the (count,) entries as a view of the bytes of the whole file, not scaled."""
        if not self._count:
            return read_only(np.empty(0, self._dtype))
        return np.ndarray((self._count,), self._dtype, data, self._offset, (self._step,))

    def _memory(self, data: NDArray[np.uint8]) -> memoryview:
        return data.data[self._offset : self._offset + 8 * self._count].cast("q")


class OneSequenceEach:
    """The document indices if each sequence is a document: 0, 1, 2, ... N, computed when needed."""

    def __init__(self, num_sequences: int) -> None:
        self._count = num_sequences + 1

    def __len__(self) -> int:
        return self._count

    def read(self, begin: int, end: int) -> IntArray:
        """Return the numbers ``begin`` to ``end``, (end - begin,) int64."""
        return np.arange(begin, end)

    def take(self, at: IntArray) -> IntArray:
        """Return the positions themselves."""
        return at

    def last_at_most(self, values: IntArray) -> IntArray:
        """Return the values themselves."""
        return values

    def array(self) -> IntArray:
        """Return a new array of all entries, (N + 1,) int64."""
        return np.arange(self._count)


class Index:
    """One index: its arrays, and the checks that cost O(1).

    Args:
        reader: reads the bytes.
        path: the ``.idx``, which is known to be at least ``arrays.end`` bytes long.
        arrays: the places of the arrays.
        bin_bytes: size of the ``.bin`` in bytes; also an attribute.

    Attributes:
        arrays: the places of the arrays, and the dtype of the tokens.
        sizes: (N,) number of tokens in each sequence.
        pointers: (N,) byte of the ``.bin`` where each sequence begins.
        bounds: (D,) number of sequences before each document; the last is N.
        modes: (N,) kind of each sequence; None if the index has no modes.
        last_byte: byte of the ``.bin`` where the last sequence ends; 0 without sequences.

    Raises:
        StoreError: the first or last entries of the arrays do not fit the files.
    """

    def __init__(self, reader: Reader, path: str, arrays: Arrays, bin_bytes: int) -> None:
        self._reader = reader
        self.path = path
        self.size = reader.size(path)
        self.arrays = arrays
        self.bin_bytes = bin_bytes
        self.sizes = IntegerColumn(reader, path, arrays.sizes, most=bin_bytes // arrays.dtype.itemsize)
        self.pointers = IntegerColumn(reader, path, arrays.pointers)
        bounds, modes = arrays.bounds, arrays.modes
        self.bounds = OneSequenceEach(len(self.sizes)) if bounds is None else IntegerColumn(reader, path, bounds)
        self.modes = None if modes is None else IntegerColumn(reader, path, modes)
        self.last_byte = self._check_ends(bin_bytes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens in the ``.bin``."""
        return self.arrays.dtype

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        return len(self.bounds) - 1

    def sequence(self, number: int) -> tuple[int, int]:
        """Return the number of tokens in one sequence and the byte where it begins; about 0.8 us if mapped."""
        views = self._reader.kept(self.path, "sizes and pointers", self._views)
        if views is None:
            return int(self.sizes.read(number, number + 1)[0]), int(self.pointers.read(number, number + 1)[0])
        sizes, pointers = views
        return sizes.item(number), pointers.item(number) * self.arrays.pointers.scale

    def _views(self, data: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.sizes.view(data), self.pointers.view(data)

    def for_pass(self) -> Index:
        """Return the same index for one pass over all entries, through `Reader.for_pass`."""
        return Index(self._reader.for_pass(), self.path, self.arrays, self.bin_bytes)

    def documents_of(self, sequences: IntArray) -> IntArray:
        """Return the document to which each sequence belongs, (n,) int64."""
        return self.bounds.last_at_most(sequences)

    def _check_ends(self, bin_bytes: int) -> int:
        path, count = self.path, len(self.sizes)
        first, last = self.bounds.take(np.array([0, len(self.bounds) - 1])).tolist()
        if self.arrays.bounds is not None and (first != 0 or last != count):
            lost = "; merges with GPT-NeoX and with Aleph Alpha's builder lose the documents" if last == 0 else ""
            raise StoreError(
                f"{path}: byte {self.arrays.bounds.offset}: the document indices must go from 0 to {count} (the number"
                f" of sequences); found {first} to {last} in {len(self.bounds)} of them{lost}; open it with"
                " documents='sequences' to make each sequence a document, or merge again"
            )
        if count == 0:
            return 0
        size = int(self.sizes.read(count - 1, count)[0])
        begin, pointer = self.pointers.take(np.array([0, count - 1])).tolist()
        end = int(pointer + size * self.dtype.itemsize)
        if begin < 0 or pointer < 0 or size < 0:
            raise StoreError(
                f"{path}: a pointer or size is negative: sequence 0 begins at byte {begin}, sequence {count - 1} begins"
                f" at byte {pointer} and has {size} tokens"
            )
        if end > bin_bytes:
            raise StoreError(
                f"{path}: sequence {count - 1}, the last, ends at byte {end} of the .bin, which has {bin_bytes} bytes;"
                " the .bin is cut short, or belongs to another .idx"
            )
        return end


class Stream(ABC):
    """Converts between tokens of the stream, sequences, and bytes of the ``.bin``.

    Attributes:
        num_tokens: number of tokens in the stream.
    """

    num_tokens: int

    @abstractmethod
    def begins(self, sequences: IntArray) -> IntArray:
        """Return the token where each sequence begins, (n,) int64; for sequence N, ``num_tokens``."""

    @abstractmethod
    def sequences(self, tokens: IntArray) -> IntArray:
        """Return the sequence that holds each token, (n,) int64; all tokens are in ``[0, num_tokens)``."""

    @abstractmethod
    def ranges(self, begins: IntArray, length: int) -> tuple[IntArray, IntArray]:
        """Return the byte ranges (offsets, lengths) of ``length`` tokens from each begin on, in order."""


class ContiguousStream(Stream):
    """The stream of sequences that lie one after another from byte 0 on, so it equals the file. O(1) memory."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._itemsize = index.dtype.itemsize
        self.num_tokens = index.last_byte // self._itemsize

    def begins(self, sequences: IntArray) -> IntArray:
        """Return the pointers, in tokens."""
        count = len(self._index.pointers)
        if count == 0:
            return np.zeros(len(sequences), np.int64)
        pointers = self._index.pointers.take(np.minimum(sequences, count - 1))
        return np.where(sequences < count, pointers // self._itemsize, self.num_tokens)

    def sequences(self, tokens: IntArray) -> IntArray:
        """Return the sequence that holds each token: of several that begin at its byte, the last is not empty."""
        if not len(tokens):
            return np.zeros(0, np.int64)
        return self._index.pointers.last_at_most(tokens * self._itemsize)

    def ranges(self, begins: IntArray, length: int) -> tuple[IntArray, IntArray]:
        """Return one range for each begin."""
        return begins * self._itemsize, np.full(len(begins), length * self._itemsize, np.int64)


class ScatteredStream(Stream):
    """The stream of sequences that lie anywhere in the file. It keeps prefix sums of sizes, 8 bytes a sequence."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._itemsize = index.dtype.itemsize
        count, most = len(index.sizes), index.bin_bytes // self._itemsize
        self._ends = np.zeros(count + 1, np.int64)
        for begin in range(0, count, CHUNK):
            sizes = index.sizes.read(begin, min(begin + CHUNK, count))
            if sizes.min() < 0:
                at = int(np.argmin(sizes))
                raise StoreError(
                    f"{index.path}: sequence {begin + at} has {sizes[at]} tokens; sizes may not be negative"
                )
            if sizes.max() > most:  # also before their sum is too large for int64
                at = int(np.argmax(sizes))
                raise StoreError(
                    f"{index.path}: sequence {begin + at} has {sizes[at]} tokens; the .bin has room for at most {most}"
                )
            self._ends[begin + 1 : begin + 1 + len(sizes)] = sizes
        np.cumsum(self._ends, out=self._ends)
        self.num_tokens = int(self._ends[-1])

    def begins(self, sequences: IntArray) -> IntArray:
        """Return the prefix sums of the sizes."""
        return self._ends[sequences]

    def sequences(self, tokens: IntArray) -> IntArray:
        """Search the prefix sums."""
        return np.searchsorted(self._ends, tokens, side="right") - 1

    def ranges(self, begins: IntArray, length: int) -> tuple[IntArray, IntArray]:
        """Return one range for each part of a sequence.

        For example, with sizes 3, 2 and 4, the 6 tokens from token 1 on are tokens 1..2 of sequence 0, all of sequence
        1, and tokens 0..1 of sequence 2.
        """
        cuts = cut_at_bounds(self._ends, begins, length)
        offsets = self._index.pointers.take(cuts.parts) + cuts.firsts * self._itemsize
        return offsets, cuts.lengths * self._itemsize


def examine(index: Index) -> Stream:
    """Look at every size and pointer of the ``.idx`` once, in chunks, and return the stream that they describe.

    Raises:
        StoreError: a size is negative.
    """
    return ContiguousStream(index) if is_contiguous(index.for_pass()) else ScatteredStream(index)


def check_bounds(index: Index) -> None:
    """Check every document index, in chunks.

    Raises:
        StoreError: the document indices decrease.
    """
    if index.arrays.bounds is None:  # each sequence is a document
        return
    index = index.for_pass()
    count = len(index.bounds)
    for begin in range(0, count - 1, CHUNK):
        bounds = index.bounds.read(begin, min(begin + CHUNK + 1, count))
        falls = bounds[1:] < bounds[:-1]
        if falls.any():
            at = int(falls.argmax())
            raise StoreError(
                f"{index.path}: document {begin + at} begins with sequence {bounds[at]} and ends before sequence"
                f" {bounds[at + 1]}; document indices may not decrease"
            )


def is_contiguous(index: Index) -> bool:
    """Return whether the sequences follow one another from the begin of the file on; in chunks."""
    itemsize, count = index.dtype.itemsize, len(index.sizes)
    expected = 0
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        sizes, pointers = index.sizes.stored(begin, end), index.pointers.read(begin, end)
        if sizes.max() > index.bin_bytes // itemsize:  # its product with the size of a token may exceed 64 bits
            return False
        # Sizes of 32 bits may exceed these when multiplied by the size of a token.
        steps = np.multiply(sizes[:-1], itemsize, dtype=np.int64)
        if pointers[0] != expected or sizes.min() < 0 or not np.array_equal(pointers[1:] - pointers[:-1], steps):
            return False
        expected = int(pointers[-1]) + int(sizes[-1]) * itemsize
    return True
