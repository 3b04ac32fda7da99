"""Ranges of a stream cut where its parts meet."""

from __future__ import annotations

import numpy as np

from headrace.stores.types import IntArray


def cut_at(bounds: IntArray, begins: IntArray, length: int) -> tuple[IntArray, IntArray, IntArray]:
    """The parts that make up ``length`` tokens from each begin on, in order: number, first token in it, tokens.

    Example: parts of 3, 2 and 4 tokens have the bounds 0, 3, 5, 9; 6 tokens from token 1 on are tokens 1..2 of part 0,
    all of part 1, and 0..1 of part 2: ``[0, 1, 2], [1, 0, 0], [2, 2, 2]``.

    Args:
        bounds: (parts + 1,) int64, prefix sums from 0; empty parts are allowed.
        begins: (n,) int64 tokens of the stream, with ``length`` tokens from each on.
        length: tokens of each range.
    """
    if length == 0 or not len(begins):
        none = np.zeros(0, np.int64)
        return none, none, none
    first = np.searchsorted(bounds, begins, side="right") - 1
    counts = np.searchsorted(bounds, begins + (length - 1), side="right") - first
    # Row by row the parts first, first + 1, ...: a running number minus where the row's own run began.
    run = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    parts = np.repeat(first, counts) + run
    row_begins = np.repeat(begins, counts)
    low = np.maximum(row_begins, bounds[parts])
    high = np.minimum(row_begins + length, bounds[parts + 1])
    return parts, low - bounds[parts], high - low
