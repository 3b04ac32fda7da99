"""Samples that are planned but not read, and their rows source by source."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headrace.plan import IntArray


class Located(NamedTuple):
    """Samples that are planned but not read.

    Each is (n,) int64: positions in the run, numbers of the sources, and addresses in the sources' datasets.
    """

    positions: IntArray
    sources: IntArray
    addresses: IntArray

    def rows(self, begin: int, end: int) -> Located:
        """Return the rows from ``begin`` to ``end - 1``."""
        return Located(self.positions[begin:end], self.sources[begin:end], self.addresses[begin:end])


def by_source(sources: IntArray) -> Iterator[tuple[int, slice | IntArray]]:
    """Yield each source that occurs, with its rows."""
    rows = np.argsort(sources, kind="stable")
    ordered = sources[rows]
    firsts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(rows)]
    for first, end in pairwise(firsts):
        if end - first == 1:
            # With many sources most have one row, and a slice is the cheapest way to write a single row.
            row = int(rows[first])
            yield int(ordered[first]), slice(row, row + 1)
        elif end > first:
            yield int(ordered[first]), rows[first:end]
