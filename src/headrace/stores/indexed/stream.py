"""Maps the token stream of one indexed shard to bytes of its ``.bin``.

In nearly every shard the sequences lie one after another, so a position in the stream times the size of a token is a
position in the file. An ``.idx`` may also select or reorder sequences of a ``.bin``; then the stream is scattered over
the file. Headrace does not assume either: it looks at every pointer once, which takes 2 to 3 ns each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from headrace.errors import StoreError
from headrace.stores.indexed.index import CHUNK, Index
from headrace.stores.segmented import cut_at_bounds
from headrace.stores.store import IntArray


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
        count = len(index.sizes)
        self._ends = np.zeros(count + 1, np.int64)
        for begin in range(0, count, CHUNK):
            sizes = index.sizes.read(begin, min(begin + CHUNK, count))
            if sizes.min() < 0:
                at = int(np.argmin(sizes))
                raise StoreError(
                    f"{index.path}: sequence {begin + at} has {sizes[at]} tokens; sizes may not be negative"
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
    return ContiguousStream(index) if _is_contiguous(index.for_pass()) else ScatteredStream(index)


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


def _is_contiguous(index: Index) -> bool:
    itemsize, count = index.dtype.itemsize, len(index.sizes)
    expected = 0
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        sizes, pointers = index.sizes.stored(begin, end), index.pointers.read(begin, end)
        # The sizes are int32; multiplied by the size of a token they may exceed it.
        steps = np.multiply(sizes[:-1], itemsize, dtype=np.int64)
        if pointers[0] != expected or sizes.min() < 0 or not np.array_equal(pointers[1:] - pointers[:-1], steps):
            return False
        expected = int(pointers[-1]) + int(sizes[-1]) * itemsize
    return True
