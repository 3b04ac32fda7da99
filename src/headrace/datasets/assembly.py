"""Pieces of documents laid out as rows: the fields of packed samples, many rows at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan import IntArray


class Ranges(dict[int, memoryview]):
    """length -> 0 .. length - 1, each a view that is made once: to look it up costs a third of making it."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self._longest = longest
        self.dtype = np.dtype(np.uint16 if longest <= 1 << 16 else np.int32)
        self._numbers = np.arange(longest, dtype=self.dtype).data

    def __missing__(self, length: int) -> memoryview:
        self[length] = self._numbers[:length]
        return self[length]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._longest,)


class Pads(NamedTuple):
    """All pads: their places, counted over all rows, and their positions in their segments; (pads,) int64 each."""

    places: IntArray
    positions: IntArray


class Rows(NamedTuple):
    """Where each piece lies in rows of ``row_tokens`` places; pieces of all rows, one after another.

    ``offsets`` (rows + 1,) int64: row i has the pieces ``offsets[i]`` to ``offsets[i + 1]``. ``lengths`` and
    ``segments`` (pieces,) int64: tokens of each piece, and its places with the pads that belong to it. ``ends``
    (pieces,) int64: the place after the last token of each, counted over all rows. ``tails`` (rows,) int64: pads at the
    end of each row. ``widths`` (pieces,) int64: the places from each piece to the next, all pads among them.
    """

    row_tokens: int
    offsets: IntArray
    lengths: IntArray
    segments: IntArray
    ends: IntArray
    tails: IntArray
    widths: IntArray

    @classmethod
    def of(cls, offsets: IntArray, lengths: IntArray, *, row_tokens: int, segment_multiple: int) -> Rows:
        """Lay pieces out in rows, each row from its beginning."""
        segments = lengths if segment_multiple == 1 else -(-lengths // segment_multiple) * segment_multiple
        tails = row_tokens - np.add.reduceat(segments, offsets[:-1])
        widths = segments.copy()
        widths[offsets[1:] - 1] += tails
        # The widths of a row fill it, so that their sums are places.
        return cls(row_tokens, offsets, lengths, segments, np.cumsum(widths) - widths + lengths, tails, widths)

    @property
    def is_full(self) -> bool:
        """Whether there are no pads."""
        return int(self.lengths.sum()) == len(self.tails) * self.row_tokens

    def concatenate(self, pieces: list[memoryview], pad: NDArray[Any]) -> NDArray[Any]:
        """(rows * row_tokens,) read-only: pieces and pads in their places, in the dtype that they share.

        ``pad`` is (row_tokens,) of whatever pads are. To join bytes costs half of ``np.concatenate``, and a third of
        casting each piece on the way.
        """
        parts, padding = list(pieces), pad.data
        gaps = self.widths - self.lengths
        behind = np.flatnonzero(gaps)[::-1]
        # From the last one on: what is inserted moves no place that is still to come.
        for piece, gap in zip(behind.tolist(), gaps[behind].tolist(), strict=True):
            parts.insert(piece + 1, padding[:gap])
        return np.frombuffer(b"".join(parts), dtype=pad.dtype)

    def positions(self, ranges: Ranges) -> NDArray[Any]:
        """(rows * row_tokens,) read-only: 0, 1, 2, ... from 0 again at each piece; not right yet at ``pads``."""
        return np.frombuffer(b"".join(map(ranges.__getitem__, self.widths.tolist())), dtype=ranges.dtype)

    def pads(self) -> Pads:
        """Those of the pieces, which go on counting, and those at the ends of rows, which count from 0."""
        rows = np.flatnonzero(self.tails)
        counts = self.tails[rows]
        begins = (rows + 1) * self.row_tokens - counts
        first = np.zeros_like(counts)
        if self.segments is not self.lengths:
            counts = np.concatenate([self.segments - self.lengths, counts])
            begins, first = np.concatenate([self.ends, begins]), np.concatenate([self.lengths, first])
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return Pads(numbers + np.repeat(begins, counts), numbers + np.repeat(first, counts))
