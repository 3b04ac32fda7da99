"""Reads the headers of a file without most of what lies between them."""

from __future__ import annotations

from typing import Final

import numpy as np

from headrace.io import Reader

_LARGE: Final = 1 << 20
_SMALL: Final = 4 << 10
_FAR: Final = 64 << 10
"""To read past this much costs about what another read does, also where the disk reads ahead."""


class Window:
    """A piece of a file that moves along with those who fetch from it: for one thread, in the order of the file.

    Where the next header is near, all between is read, a MiB at a time; where large parts lie between, it is
    passed over, and a page is read.
    """

    def __init__(self, using: Reader, path: str) -> None:
        self.size = using.size(path)
        self._reader = using
        self._path = path
        self._begin = 0
        self._data = memoryview(b"")

    def fetch(self, at: int, length: int) -> memoryview:
        """The bytes ``[at, at + length)`` of the file, which must have them."""
        begin = at - self._begin
        if begin < 0 or begin + length > len(self._data):
            size = _SMALL if begin - len(self._data) > _FAR else _LARGE
            size = max(length, min(size, self.size - at))
            self._data = self._reader.read_ranges(self._path, np.array([at]), np.array([size])).data
            self._begin, begin = at, 0
        return self._data[begin : begin + length]
