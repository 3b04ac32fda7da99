"""Batch memory that is used again once nobody holds it.

Fresh memory of some hundred KiB costs more in page faults than the tokens that go into it, since the C library gives
it back to the system at every turn. Here arrays whose last tensor, view and reference is gone are handed out again.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import Fields, Sample

_SETS = 32
"""Sets remembered; a consumer that keeps more batches alive than these gets fresh memory for the rest."""

Arrays = tuple[NDArray[Any], ...]


def _references(arrays: Arrays) -> int:
    """The references to the most used of these arrays, those of this call among them."""
    return max(map(sys.getrefcount, arrays))


_NOBODY = _references((np.empty(1),))


class Buffers:
    """Sets of batch arrays, one array a field, (rows, ...) each. For one thread."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._sets: deque[tuple[int, Arrays]] = deque(maxlen=_SETS)

    def take(self, num_rows: int) -> Sample:
        """Uninitialised arrays that nobody else holds: used ones where there are any of this size, else fresh ones."""
        for rows, arrays in self._sets:
            if rows == num_rows and _references(arrays) == _NOBODY:
                return dict(zip(self._fields, arrays, strict=True))
        arrays = tuple(np.empty((num_rows, *shape), dtype=dtype) for shape, dtype in self._fields.values())
        # In front, so that the memory used last, which is still in the cache, is looked at first.
        self._sets.appendleft((num_rows, arrays))
        return dict(zip(self._fields, arrays, strict=True))
