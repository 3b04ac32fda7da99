"""Reads files, and hashes what is read of them in order: whoever reads all of a file gets its sums for free."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import StoreError
from headrace.io import FileHasher, FileSum, PreadReader
from headrace.io.readers import ByteArray
from headrace.stores.arguments import IntArray

_READ_BYTES = 1 << 20


class HashingReader(PreadReader):
    """A reader that takes the bytes of every file into a hasher as long as they come in order. For one thread.

    A range that goes on behind the bytes that were hashed is taken, any other is only read. What was not read in order
    by the end is read for `sum`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hashers: dict[str, FileHasher] = {}

    def read_ranges(self, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray | None = None) -> ByteArray:
        """As every reader."""
        data = super().read_ranges(path, offsets, lengths, out)
        if len(offsets) == 1 and int(offsets[0]) == self._hasher(path).size:
            self._hasher(path).update(data.data)
        return data

    def sum(self, path: Path) -> FileSum:
        """Size and hashes of a whole file; what of it was not read in order is read now.

        Raises:
            StoreError: it cannot be read, or was changed since it was opened.
        """
        hasher, size = self._hasher(str(path)), self.size(str(path))
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(hasher.size)
                while hasher.size < size and (data := file.read(_READ_BYTES)):
                    hasher.update(data)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        if hasher.size != size:
            raise StoreError(f"{path}: changed while it was in use: {size} bytes at first, now {hasher.size}")
        return hasher.sum(path.name)

    def _hasher(self, path: str) -> FileHasher:
        return self._hashers.setdefault(path, FileHasher())
