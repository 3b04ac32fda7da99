"""Pieces of documents laid out as rows: the fields of packed samples, many rows at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan import IntArray


class Ranges(dict[int, IntArray]):
    """length -> 0 .. length - 1, each a view that is made once: to look it up costs a third of making it."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self._numbers = np.arange(longest, dtype=np.int64)

    def __missing__(self, length: int) -> IntArray:
        self[length] = self._numbers[:length]
        return self[length]


class Rows(NamedTuple):
    """Where each piece lies in rows of ``row_tokens`` places; pieces of all rows, one after another.

    ``offsets`` (rows + 1,) int64: row i has the pieces ``offsets[i]`` to ``offsets[i + 1]``. ``lengths`` and
    ``segments`` (pieces,) int64: tokens of each piece, and its places with the pads that belong to it. ``ends``
    (pieces,) int64: the place after the last token of each, counted over all rows. ``tails`` (rows,) int64: pads at the
    end of each row.
    """

    row_tokens: int
    offsets: IntArray
    lengths: IntArray
    segments: IntArray
    ends: IntArray
    tails: IntArray

    @classmethod
    def of(cls, offsets: IntArray, lengths: IntArray, *, row_tokens: int, segment_multiple: int) -> Rows:
        """Lay pieces out in rows, each row from its beginning."""
        segments = lengths if segment_multiple == 1 else -(-lengths // segment_multiple) * segment_multiple
        sums = np.zeros(len(segments) + 1, dtype=np.int64)
        np.cumsum(segments, out=sums[1:])
        counts = np.diff(offsets)
        num_rows = len(counts)
        # Where the row of a piece begins, less what all pieces before that row take.
        shift = np.arange(num_rows, dtype=np.int64) * row_tokens - sums[offsets[:-1]]
        ends = sums[:-1] + lengths + np.repeat(shift, counts)
        return cls(row_tokens, offsets, lengths, segments, ends, row_tokens - np.diff(sums[offsets]))

    def concatenate(self, pieces: list[NDArray[Any]], pad: NDArray[Any]) -> NDArray[Any]:
        """(rows * row_tokens,): pieces and pads in their places, in the dtype that they share.

        ``pad`` is (row_tokens,) of whatever pads are. Pieces of one dtype are copied as they are; to cast each of them
        on the way would cost three times as much.
        """
        parts: list[NDArray[Any]] = []
        inner = None if self.segments is self.lengths else (self.segments - self.lengths).tolist()
        firsts = self.offsets.tolist()
        for row, tail in enumerate(self.tails.tolist()):
            if inner is None:
                parts += pieces[firsts[row] : firsts[row + 1]]
            else:
                for piece in range(firsts[row], firsts[row + 1]):
                    parts += (pieces[piece], pad[: inner[piece]])
            if tail:
                parts.append(pad[:tail])
        return np.concatenate(parts)

    def pads(self) -> IntArray:
        """(pads,) int64: the places of all pads, counted over all rows."""
        gaps = self.segments - self.lengths
        row_ends = np.arange(1, len(self.tails) + 1, dtype=np.int64) * self.row_tokens
        begins = np.concatenate([self.ends, row_ends - self.tails])
        counts = np.concatenate([gaps, self.tails])
        return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())

    def positions(self, ranges: Ranges, out: NDArray[Any]) -> None:
        """0, 1, 2, ... from 0 again in each segment, and in the pads at the end of a row."""
        parts: list[NDArray[Any]] = []
        firsts, segments = self.offsets.tolist(), list(map(ranges.__getitem__, self.segments.tolist()))
        for row, tail in enumerate(self.tails.tolist()):
            parts += segments[firsts[row] : firsts[row + 1]]
            if tail:
                parts.append(ranges[tail])
        np.concatenate(parts, out=out)

    def repeat(self, values: IntArray, pad: int) -> IntArray:
        """(rows * row_tokens,) int64: each piece's value at its tokens, ``pad`` at pads."""
        # Pieces, the gaps behind them and the tails of the rows, in the order of their places.
        num_pieces, num_rows = len(values), len(self.tails)
        counts = np.zeros(2 * num_pieces + num_rows, dtype=np.int64)
        every = np.full(len(counts), pad, dtype=np.int64)
        at = 2 * np.arange(num_pieces) + np.repeat(np.arange(num_rows), np.diff(self.offsets))
        counts[at] = self.lengths
        counts[at + 1] = self.segments - self.lengths
        every[at] = values
        counts[2 * self.offsets[1:] + np.arange(num_rows)] = self.tails
        return np.repeat(every, counts)
