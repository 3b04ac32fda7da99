"""Whether the pieces of each document, met in any order, are its tokens exactly once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.plan import IntArray, KeyArray, derive_array
from headrace.plan.packing import Packing, PackItems


class Tiling:
    """Takes pieces, and tells which documents they do not tile. 8 bytes a document.

    A piece adds mark(end) - mark(begin) to the sum of its document, where marks are 64 bits of a hash. Marks cancel
    where one piece ends and another one begins:

        [0, 4)  [4, 9)      mark(4) - mark(0) + mark(9) - mark(4) = mark(9) - mark(0)
        [0, 4)  [5, 9)      mark(4) and mark(5) are left

    As no piece is empty, what cancels so is one chain from the first token to the last: a token that is missing, or
    there twice, is missed with a chance of 2^-64.
    """

    def __init__(self, num_documents: int) -> None:
        self._sums = np.zeros(num_documents, dtype=np.uint64)
        self.num_tokens = 0

    def add(self, items: PackItems) -> None:
        """Take the pieces of some packs."""
        marks = _marks(items.begins + items.lengths) - _marks(items.begins)
        np.add.at(self._sums, items.documents, marks)
        self.num_tokens += int(items.lengths.sum())

    def is_wrong(self, first: int, begins: IntArray, ends: IntArray) -> NDArray[np.bool_]:
        """(n,): of the documents from ``first`` on, whether the pieces are not ``[begins, ends)`` of each, once."""
        wrong: NDArray[np.bool_] = self._sums[first : first + len(begins)] != _marks(ends) - _marks(begins)
        return wrong


def _marks(tokens: IntArray) -> KeyArray:
    return derive_array(0, tokens)


def kept_range(lengths: IntArray, packing: Packing) -> tuple[IntArray, IntArray]:
    """Two (n,) int64: of documents of these lengths the tokens from .. to that are in packs."""
    size = packing.max_seq_len
    if packing.cuts or packing.over_long == "split":
        return np.zeros_like(lengths), lengths
    if packing.over_long == "drop":
        return np.zeros_like(lengths), np.where(lengths > size, 0, lengths)
    if packing.over_long == "truncate_left":
        return np.maximum(lengths - size, 0), lengths
    return np.zeros_like(lengths), np.minimum(lengths, size)
